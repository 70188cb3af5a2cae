"""The verdict over orderly ledgers: broken promises are found, and a changed ledger does not pass."""

from __future__ import annotations

import random

import pytest

from tests.nightly.campaigns import orderly_verdict
from tests.nightly.campaigns.members import JAVA, JOIN, KILL, LEAVE, LEFT, RMQD, MemberEvent
from tests.nightly.campaigns.orderly_verdict import OrderlyVerdict, judge, judge_beside_concurrent
from tests.nightly.campaigns.verdict import JAVA_GAVE_UP, KILLED, SAME_MEMBER, STORED_TWICE
from tests.rocketmq.ledger import FAIL, FINISH, SENT, START, Entry

SECOND = 1_000_000
JOINS = [
    MemberEvent(0, JOIN, "rmqd-a.1", RMQD),
    MemberEvent(0, JOIN, "rmqd-b.1", RMQD),
    MemberEvent(0, JOIN, "java-c.1", JAVA),
]


def entry(
    event: str, key: str, member: str, seconds: float, *, queue: int = 0, times: int = 0, offset: int = 0
) -> Entry:
    """Return a line of the ledger."""
    return Entry(event, key, "b", queue, offset, member, int(seconds * SECOND), times)


def attempt(
    key: str,
    member: str,
    begin: float,
    end: float | None,
    *,
    outcome: str = FINISH,
    queue: int = 0,
    times: int = 0,
    offset: int = 0,
) -> list[Entry]:
    """Return a message's start and, unless `end` is None, its end. Times are in seconds."""
    entries = [entry(START, key, member, begin, queue=queue, times=times, offset=offset)]
    if end is not None:
        entries.append(entry(outcome, key, member, end, queue=queue, times=times, offset=offset))
    return entries


def judged(*attempts: list[Entry], events: tuple[MemberEvent, ...] = (), sent: tuple[str, ...] = ()) -> OrderlyVerdict:
    """Return the verdict. The messages, or `sent`, are sent at 0 s."""
    entries = sorted((entry for entries in attempts for entry in entries), key=lambda entry: entry.at_micros)
    keys = sent or tuple(dict.fromkeys(entry.key for entry in entries))
    return judge([entry(SENT, key, "producer", 0) for key in keys], entries, [*JOINS, *events])


def ended(action: str, member: str, seconds: float) -> MemberEvent:
    """Return the end of a member."""
    return MemberEvent(int(seconds * SECOND), action, member, member.partition("-")[0])


def test_each_key_in_order_with_one_member_at_a_time_passes() -> None:
    """A queue may change its member. Queues are independent."""
    found = judged(
        attempt("s.0", "rmqd-a.1", 1, 2),
        attempt("t.0", "java-c.1", 1, 5, queue=1),
        attempt("s.1", "java-c.1", 2, 3),
        attempt("s.2", "rmqd-b.1", 4.5, 5),
    )

    assert found.passed, found.report()
    assert not found.repeated
    assert found.longest_wait_seconds == 4.5


def test_a_message_never_finished_is_lost() -> None:
    """A begun or failed message is not handled."""
    found = judged(
        attempt("s.0", "rmqd-a.1", 1, None), attempt("t.0", "rmqd-a.1", 1, 2, outcome=FAIL), sent=("s.0", "t.0", "u.0")
    )

    assert found.lost == ["s.0", "t.0", "u.0"]
    assert not found.passed


@pytest.mark.parametrize(
    "attempts",
    [
        [attempt("s.1", "rmqd-a.1", 1, 2), attempt("s.0", "rmqd-a.1", 3, 4)],
        [attempt("s.0", "rmqd-a.1", 1, 3), attempt("s.1", "rmqd-a.1", 2, 4)],
        [
            attempt("s.0", "rmqd-a.1", 1, 2, outcome=FAIL),
            attempt("s.1", "rmqd-a.1", 3, 4),
            attempt("s.0", "rmqd-a.1", 5, 6, times=1),
        ],
        [attempt("s.0", "rmqd-a.1", 1, 2), attempt("s.2", "rmqd-a.1", 3, 4), attempt("s.1", "rmqd-a.1", 5, 6)],
    ],
    ids=["reversed", "begun too soon", "overtakes a failed one", "one left out"],
)
def test_a_broken_order_is_reported(attempts: list[list[Entry]]) -> None:
    """A message of a sharding key must wait until its predecessor is handled."""
    found = judged(*attempts)

    assert found.disordered
    assert not found.passed
    assert found.disordered[0] in found.report()


def test_a_member_that_handles_two_messages_of_a_key_at_once_is_reported() -> None:
    """Here both messages are repetitions, and were handled in order before."""
    found = judged(
        *(attempt(f"s.{number}", "rmqd-a.1", number, number + 0.5) for number in (0, 1)),
        *(attempt(f"s.{number}", "rmqd-b.1", 70, 71) for number in (0, 1)),
        events=(ended(KILL, "rmqd-a.1", 4),),
    )

    assert len(found.disordered) == 1
    assert "beside" in found.disordered[0]


def beside_concurrent(*attempts: list[Entry]) -> OrderlyVerdict:
    """Return the verdict of a run with a concurrent Java member."""
    entries = sorted((entry for entries in attempts for entry in entries), key=lambda entry: entry.at_micros)
    sent = [entry(SENT, key, "producer", 0) for key in dict.fromkeys(one.key for one in entries)]
    return judge_beside_concurrent(sent, entries, JOINS, 5.0)


def test_pairs_with_a_concurrent_java_member_are_not_judged() -> None:
    """It handles messages of a key in parallel, and at the same time as the queue's next owner."""
    found = beside_concurrent(
        attempt("s.0", "java-c.1", 1, 3),
        attempt("s.1", "java-c.1", 1, 2),
        attempt("s.2", "rmqd-a.1", 1, 2),
        attempt("s.3", "rmqd-a.1", 2, 3),
    )

    assert found.passed, found.report()
    assert (found.pairs, found.left_out) == (1, 2)


def test_rmqd_keeps_the_order_next_to_a_concurrent_java_member() -> None:
    """Order is kept within and between rmqd members, without repetitions between them."""
    too_soon = beside_concurrent(attempt("s.0", "rmqd-a.1", 1, 3), attempt("s.1", "rmqd-a.1", 2, 4))
    handed_over = beside_concurrent(attempt("s.0", "rmqd-a.1", 1, 3), attempt("s.1", "rmqd-b.1", 2, 4))
    twice = beside_concurrent(attempt("s.0", "rmqd-a.1", 1, 2), attempt("s.0", "rmqd-b.1", 3, 4))
    never = beside_concurrent(attempt("s.0", "rmqd-a.1", 1, None))

    assert too_soon.disordered
    assert handed_over.disordered
    assert not any(found.passed for found in (too_soon, handed_over, twice, never))


def test_repetitions_after_a_kill_do_not_break_the_order() -> None:
    """Only first attempts count: after a kill a queue restarts at the committed offset."""
    found = judged(
        *(attempt(f"s.{number}", "rmqd-a.1", number, number + 0.5) for number in (1, 2, 3)),
        attempt("s.0", "rmqd-a.1", 0.1, 0.2),
        *(attempt(f"s.{number}", "rmqd-b.1", number + 70, number + 70.5) for number in (2, 3, 4)),
        events=(ended(KILL, "rmqd-a.1", 4),),
    )

    assert found.passed, found.report()
    assert dict(found.repeated) == {KILLED: 2}


def test_two_members_in_one_queue_at_once_are_reported() -> None:
    """This holds even if each message is handled once and in order."""
    found = judged(attempt("s.0", "rmqd-a.1", 1, 3), attempt("t.0", "java-c.1", 2, 4))

    assert len(found.overlapping) == 1
    assert "during" in found.report()
    assert not found.passed


def test_two_members_may_handle_two_queues_at_once() -> None:
    """Locks belong to queues."""
    assert judged(attempt("s.0", "rmqd-a.1", 1, 3), attempt("t.0", "java-c.1", 2, 4, queue=1)).passed


@pytest.mark.parametrize("action", [KILL, LEFT])
@pytest.mark.parametrize(("ended_at", "passes"), [(2.5, True), (3.5, False)])
def test_an_open_attempt_ends_with_its_member(action: str, ended_at: float, passes: bool) -> None:
    """A member that has ended no longer handles its open message."""
    found = judged(
        attempt("s.0", "rmqd-a.1", 1, None),
        attempt("s.0", "java-c.1", 3, 4),
        events=(ended(action, "rmqd-a.1", ended_at),),
    )

    assert bool(found.overlapping) is not passes


CASES = {
    orderly_verdict.RMQD_GAVE_UP: judged(attempt("s.0", "rmqd-a.1", 1, 2), attempt("s.0", "java-c.1", 3, 4)),
    SAME_MEMBER: judged(attempt("s.0", "rmqd-a.1", 1, 2), attempt("s.0", "rmqd-a.1", 3, 4)),
    KILLED: judged(
        attempt("s.0", "rmqd-a.1", 1, 2),
        attempt("s.0", "rmqd-b.1", 3, 4),
        events=(ended(KILL, "rmqd-a.1", 2.5),),
    ),
    JAVA_GAVE_UP: judged(attempt("s.0", "java-c.1", 1, 2), attempt("s.0", "rmqd-b.1", 3, 4)),
    orderly_verdict.FAILED: judged(attempt("s.0", "rmqd-a.1", 1, 2, outcome=FAIL), attempt("s.0", "rmqd-b.1", 3, 4)),
    STORED_TWICE: judged(attempt("s.0", "rmqd-a.1", 1, 2), attempt("s.0", "rmqd-a.1", 3, 4, offset=7)),
}


@pytest.mark.parametrize("cause", CASES)
def test_each_cause_of_a_repetition_is_recognized(cause: str) -> None:
    """Only causes that rmqd promises to avoid fail the run."""
    found = CASES[cause]

    assert dict(found.repeated) == {cause: 1}
    assert found.passed == (cause not in orderly_verdict.FORBIDDEN)
    assert cause in found.report()


def test_a_repetition_after_a_graceful_leave_is_reported() -> None:
    """Messages that an rmqd member finished before it left must not be handled again."""
    events = (ended(LEAVE, "rmqd-a.1", 2.5), ended(LEFT, "rmqd-a.1", 2.8))

    found = judged(attempt("s.0", "rmqd-a.1", 1, 2), attempt("s.0", "rmqd-b.1", 3, 4), events=events)

    assert dict(found.repeated) == {orderly_verdict.RMQD_GAVE_UP: 1}


def test_a_kill_explains_repetitions_only_in_queues_that_the_member_still_owned() -> None:
    """If the member released the queue before the kill, its offset was committed."""
    found = judged(
        attempt("s.0", "rmqd-a.1", 1, 2),
        attempt("s.1", "rmqd-b.1", 3, 4),
        attempt("s.0", "rmqd-b.1", 6, 7),
        events=(ended(KILL, "rmqd-a.1", 5),),
    )

    assert dict(found.repeated) == {orderly_verdict.RMQD_GAVE_UP: 1}


def test_all_messages_of_a_failed_batch_may_be_repeated() -> None:
    """A failed batch is retried as a whole, so its other messages have one more attempt, too."""
    found = judged(
        attempt("s.0", "rmqd-a.1", 1, 2),
        attempt("s.1", "rmqd-a.1", 2, 3, outcome=FAIL),
        attempt("s.0", "rmqd-a.1", 4, 5, times=1),
        attempt("s.1", "rmqd-a.1", 5, 6, times=1),
    )

    assert found.passed, found.report()
    assert dict(found.repeated) == {orderly_verdict.FAILED: 2}


def sound_run(chance: random.Random) -> list[list[Entry]]:
    """Return attempts in two queues with two sharding keys each. Each queue changes its member sometimes."""
    attempts = []
    for queue in range(2):
        now, member = 1.0, "rmqd-a.1"
        for number in range(60):
            if chance.random() < 0.1:
                member = chance.choice([event.member for event in JOINS])
            key = f"s{queue}{number % 2}.{number // 2}"
            attempts.append(attempt(key, member, now, now + 0.5, queue=queue, offset=number))
            now += 1
    return attempts


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_ledger_does_not_pass(seed: int) -> None:
    """A sound ledger passes. It fails if an attempt is moved, dropped, cut or overlapped, or rmqd doubles its own."""
    chance = random.Random(seed)
    attempts = sound_run(chance)
    sent = tuple(lines[0].key for lines in attempts)
    assert judged(*attempts, sent=sent).passed

    at = chance.choice([at for at, (begin, _) in enumerate(attempts) if int(begin.key.partition(".")[2]) < 29])
    begin = attempts[at][0]
    seconds, queue, offset = begin.at_micros / SECOND, begin.queue, begin.offset
    other = next(one.member for one in JOINS if one.member != begin.member)

    moved = attempt(begin.key, begin.member, 100, 101, queue=queue, offset=offset)
    assert judged(*attempts[:at], moved, *attempts[at + 1 :], sent=sent).disordered
    assert begin.key in judged(*attempts[:at], *attempts[at + 1 :], sent=sent).lost
    assert begin.key in judged(*attempts[:at], [begin], *attempts[at + 1 :], sent=sent).lost
    doubled = judged(*attempts, attempt(begin.key, "rmqd-a.1", 100, 101, queue=queue, offset=offset), sent=sent)
    assert doubled.passed == (begin.member == "java-c.1")  # repetitions by Java are allowed
    assert judged(*attempts, attempt("x.0", other, seconds + 0.2, seconds + 0.3, queue=queue), sent=sent).overlapping
