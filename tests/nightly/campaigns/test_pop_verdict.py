"""The verdict over hand-written POP ledgers."""

from __future__ import annotations

from collections import Counter

from tests.nightly.campaigns.members import KILL, MemberEvent
from tests.nightly.campaigns.pop_verdict import NOT_HIDDEN, SEEN_AGAIN, SWITCHED, PopVerdict, judge
from tests.nightly.campaigns.verdict import KILLED
from tests.rocketmq.ledger import FINISH, START, Entry

SECOND = 1_000_000


def entry(event: str, member: str, at_seconds: float, key: str = "m0") -> Entry:
    return Entry(event, key, "broker-a", 0, 0, member, round(at_seconds * SECOND), 0)


def killed(member: str, at_seconds: float) -> MemberEvent:
    return MemberEvent(round(at_seconds * SECOND), KILL, member, "rmqd")


def judged(*entries: Entry, kills: tuple[MemberEvent, ...] = (), switches: tuple[float, ...] = ()) -> PopVerdict:
    return judge({"m0"}, entries, kills, [round(at * SECOND) for at in switches])


def test_a_message_handled_once_passes() -> None:
    verdict = judged(entry(START, "a", 1), entry(FINISH, "a", 2))

    assert verdict.passed
    assert not verdict.repeated


def test_unfinished_messages_are_lost() -> None:
    assert judged(entry(START, "a", 1)).lost == ["m0"]
    assert not judged().passed


def test_messages_of_a_killed_member_may_be_redelivered() -> None:
    """This includes messages finished just before the kill, but not those finished long before."""
    again = entry(START, "b", 60), entry(FINISH, "b", 61)
    begun = judged(entry(START, "a", 1), *again, kills=(killed("a", 1.5),))
    just_finished = judged(entry(START, "a", 1), entry(FINISH, "a", 2), *again, kills=(killed("a", 3),))
    long_ago = judged(entry(START, "a", 1), entry(FINISH, "a", 2), *again, kills=(killed("a", 30),))

    assert begun.repeated == just_finished.repeated == Counter({KILLED: 1})
    assert begun.passed
    assert long_ago.repeated == Counter({SEEN_AGAIN: 1})


def test_acknowledged_messages_must_not_be_redelivered() -> None:
    verdict = judged(entry(START, "a", 1), entry(FINISH, "a", 2), entry(START, "b", 60), entry(FINISH, "b", 61))

    assert verdict.repeated == Counter({SEEN_AGAIN: 1})
    assert not verdict.passed
    assert "(FORBIDDEN)" in verdict.report()


def test_messages_in_flight_must_be_invisible() -> None:
    verdict = judged(entry(START, "a", 1), entry(START, "b", 2), entry(FINISH, "b", 3), entry(FINISH, "a", 4))

    assert verdict.repeated == Counter({NOT_HIDDEN: 1})
    assert not verdict.passed


def test_a_mode_switch_explains_later_repetitions() -> None:
    twice = entry(START, "a", 1), entry(FINISH, "a", 2), entry(START, "b", 60), entry(FINISH, "b", 61)

    assert judged(*twice, switches=(30,)).repeated == Counter({SWITCHED: 1})
    assert judged(*twice, switches=(70,)).repeated == Counter({SEEN_AGAIN: 1})
