"""The verdict over a churn ledger: causes of repetitions, and broken promises."""

from __future__ import annotations

import pytest

from tests.nightly.campaigns import churn_verdict, verdict
from tests.nightly.campaigns.churn_verdict import ChurnVerdict, Window, judge
from tests.nightly.campaigns.members import JAVA, JOIN, KILL, LEAVE, RMQD, MemberEvent
from tests.rocketmq.ledger import FINISH, START, Entry

SECOND = 1_000_000
MEMBERS = [
    MemberEvent(0, JOIN, "rmqd-a.1", RMQD),
    MemberEvent(0, JOIN, "rmqd-b.1", RMQD),
    MemberEvent(0, JOIN, "java-c.1", JAVA),
]


def handling(key: str, member: str, begin: float, end: float | None, *, queue: int = 0) -> list[Entry]:
    """Return a message's start and, unless `end` is None, its finish. Times are in seconds."""
    entries = [Entry(START, key, "b", queue, 0, member, int(begin * SECOND), 0)]
    if end is not None:
        entries.append(Entry(FINISH, key, "b", queue, 0, member, int(end * SECOND), 0))
    return entries


def judged(
    *handlings: list[Entry], events: tuple[MemberEvent, ...] = (), sent: tuple[str, ...] = ("m",)
) -> ChurnVerdict:
    """Return the verdict with a hand-over timeout of 5 s and one window from 100 s to 200 s."""
    entries = sorted((entry for entries in handlings for entry in entries), key=lambda entry: entry.at_micros)
    return judge(sent, entries, [*MEMBERS, *events], [Window(100 * SECOND, 200 * SECOND)], 5.0)


def test_a_message_never_finished_is_lost() -> None:
    found = judged(handling("m", "rmqd-a.1", 1, None), sent=("m", "n"))

    assert found.lost == ["m", "n"]
    assert not found.passed


def test_messages_handled_once_pass() -> None:
    found = judged(handling("m", "rmqd-a.1", 1, 2))

    assert found.passed
    assert not found.repeated


CASES = {
    churn_verdict.RMQD_TO_RMQD: judged(handling("m", "rmqd-a.1", 1, 2), handling("m", "rmqd-b.1", 3, 4)),
    verdict.SAME_MEMBER: judged(handling("m", "rmqd-a.1", 1, 2), handling("m", "rmqd-a.1", 3, 4)),
    verdict.KILLED: judged(
        handling("m", "rmqd-a.1", 1, 2),
        handling("m", "rmqd-b.1", 3, 4),
        events=(MemberEvent(int(2.5 * SECOND), KILL, "rmqd-a.1", RMQD),),
    ),
    verdict.JAVA_GAVE_UP: judged(handling("m", "java-c.1", 1, 2), handling("m", "rmqd-b.1", 3, 4)),
    churn_verdict.JAVA_TOOK: judged(handling("m", "rmqd-a.1", 1, 4), handling("m", "java-c.1", 3, 4)),
    churn_verdict.LEFT_TO_JAVA: judged(
        handling("m", "rmqd-a.1", 1, 2),
        handling("m", "java-c.1", 3, 4),
        events=(MemberEvent(int(1.5 * SECOND), LEAVE, "rmqd-a.1", RMQD),),
    ),
    churn_verdict.JAVA_BETWEEN: judged(
        handling("m", "rmqd-a.1", 1, 2), handling("n", "java-c.1", 2.5, 2.6), handling("m", "rmqd-b.1", 3, 4)
    ),
    churn_verdict.TIMED_OUT: judged(
        handling("m", "rmqd-a.1", 1, 2), handling("slow", "rmqd-a.1", 1, 9), handling("m", "rmqd-b.1", 7, 8)
    ),
}


@pytest.mark.parametrize("cause", CASES)
def test_each_cause_of_a_repetition_is_recognized(cause: str) -> None:
    """Only causes that rmqd promises to avoid fail the run."""
    found = CASES[cause]

    assert dict(found.repeated) == {cause: 1}
    assert found.passed == (cause not in churn_verdict.FORBIDDEN)
    assert cause in found.report()


def test_a_slow_handler_does_not_explain_repetitions_in_another_queue() -> None:
    """A slow handler explains repetitions only in its own queue."""
    slow = handling("slow", "rmqd-a.1", 1, 9, queue=1)

    found = judged(handling("m", "rmqd-a.1", 1, 2), slow, handling("m", "rmqd-b.1", 7, 8))

    assert dict(found.repeated) == {churn_verdict.RMQD_TO_RMQD: 1}


def test_two_owners_during_settled_membership_are_reported() -> None:
    """Two members must not begin messages of one queue in a window without membership changes."""
    settled = judged(handling("m", "rmqd-a.1", 110, 111), handling("n", "rmqd-b.1", 120, 121), sent=("m", "n"))
    moving = judged(handling("m", "rmqd-a.1", 90, 91), handling("n", "rmqd-b.1", 120, 121), sent=("m", "n"))

    assert len(settled.owned_twice) == 1
    assert not settled.passed
    assert moving.passed
