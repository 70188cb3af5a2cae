"""What the verdict makes of ledgers that were written by hand."""

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


def test_once_is_well() -> None:
    verdict = judged(entry(START, "a", 1), entry(FINISH, "a", 2))

    assert verdict.passed
    assert not verdict.repeated


def test_what_nobody_finished_is_lost() -> None:
    assert judged(entry(START, "a", 1)).lost == ["m0"]
    assert not judged().passed


def test_what_a_killed_member_had_comes_again() -> None:
    """Also what it finished a moment before; not what it finished long ago."""
    again = entry(START, "b", 60), entry(FINISH, "b", 61)
    begun = judged(entry(START, "a", 1), *again, kills=(killed("a", 1.5),))
    just_finished = judged(entry(START, "a", 1), entry(FINISH, "a", 2), *again, kills=(killed("a", 3),))
    long_ago = judged(entry(START, "a", 1), entry(FINISH, "a", 2), *again, kills=(killed("a", 30),))

    assert begun.repeated == just_finished.repeated == Counter({KILLED: 1})
    assert begun.passed
    assert long_ago.repeated == Counter({SEEN_AGAIN: 1})


def test_what_a_living_member_acknowledged_must_not_come_again() -> None:
    verdict = judged(entry(START, "a", 1), entry(FINISH, "a", 2), entry(START, "b", 60), entry(FINISH, "b", 61))

    assert verdict.repeated == Counter({SEEN_AGAIN: 1})
    assert not verdict.passed
    assert "(FORBIDDEN)" in verdict.report()


def test_what_a_handler_has_must_be_hidden() -> None:
    verdict = judged(entry(START, "a", 1), entry(START, "b", 2), entry(FINISH, "b", 3), entry(FINISH, "a", 4))

    assert verdict.repeated == Counter({NOT_HIDDEN: 1})
    assert not verdict.passed


def test_a_switch_explains_what_comes_after_it() -> None:
    twice = entry(START, "a", 1), entry(FINISH, "a", 2), entry(START, "b", 60), entry(FINISH, "b", 61)

    assert judged(*twice, switches=(30,)).repeated == Counter({SWITCHED: 1})
    assert judged(*twice, switches=(70,)).repeated == Counter({SEEN_AGAIN: 1})
