"""Whether a reset was applied or lost, according to the offsets of the broker and the member."""

from __future__ import annotations

import pytest

from rmqd.operate.resets.reset_plan import PlannedQueueReset, QueuePosition, ResetGoal
from rmqd.operate.resets.reset_requests import has_applied_reset, is_reset_lost
from rmqd.wire.bodies.group_bodies import ProcessQueueInfo
from rmqd.wire.bodies.stats_bodies import TopicOffset
from rmqd.wire.message_queue import MessageQueue


def place(
    committed: int | None,
    at: int | None = None,
    *,
    made: int = 1,
    handled: int = 1,
    owner: str = "m",
    orderly: bool = False,
) -> QueuePosition:
    """The stored offset and the member's offset `at`. `made` and `handled` are the times of its cache and last call."""
    held = None if at is None else ProcessQueueInfo(at, last_lock_timestamp=made, last_consume_timestamp=handled)
    return QueuePosition(committed, "" if at is None else owner, held, is_orderly=orderly)


OBEYED = [
    # back: the broker has the target before the member is notified
    (10, place(50, 55), place(10, 55), False),
    (10, place(50, 55), place(10, 10), True),
    (10, place(50, 55), place(10, 30), True),
    # the member caught up between two polls: its cache was replaced
    (10, place(50, 55), place(55, 55), False),
    (10, place(50, 55), place(55, 55, made=2), True),
    (10, place(50, 55), place(10, 60, made=2), True),
    # orderly: the lock time is renewed all the time, so only a handler call proves the reset
    (10, place(50, 55, orderly=True), place(55, 55, made=2, orderly=True), False),
    (10, place(50, 55, orderly=True), place(55, 55, handled=2, orderly=True), True),
    # a commit in flight has undone the reset, until the next commit
    (10, place(50, 55), place(55, 12), False),
    # forward
    (90, place(50, 55), place(90, 55), False),
    (90, place(50, 55), place(55, 55), False),
    (90, place(50, 55), place(90, 90), True),
    (90, place(50, 55), place(95, 99), True),
    (90, place(50, 55), place(55, 95), False),
    # the target is the member's offset, which is ahead of its commits
    (55, place(50, 55), place(55, 55), True),
    # the queue has another owner, so the previous owner's offset is not compared
    (10, place(50, 55), place(10, 30, owner="n"), True),
    (10, place(50, 55), place(55, 60, owner="n"), False),
    # a group without a stored offset
    (10, place(None), place(10, 10), True),
    (10, place(None), place(None), False),
    # the member does not report its offset: only a stored offset that must come from the target counts
    (10, place(50), place(10), False),
    (10, place(50), place(30), True),
    (10, place(50), place(55), False),
    (90, place(50), place(90), False),
    (90, place(50), place(95), True),
    # the member has the queue, and has not started it
    (10, place(50, 55), place(10, -1), False),
]


def test_an_applied_reset_is_detected(subtests: pytest.Subtests) -> None:
    for target, before, now, obeyed in OBEYED:
        with subtests.test(target=target, before=before, now=now):
            assert has_applied_reset(target, before, now) == obeyed


LOST = [
    (10, place(50, 55), place(10, 55), False),  # the member waits for the next pull
    (10, place(50, 55), place(55, 55), True),
    (90, place(50, 55), place(55, 56), True),
    (10, place(50, 55), place(30, 30), False),
    (10, place(50, 55), place(55, 55, owner="n"), False),  # unknown, because the owner changed
    (10, place(50), place(55), False),
]


def test_a_lost_reset_is_detected(subtests: pytest.Subtests) -> None:
    """The broker accepts commits again, and the member continues at its old offset."""
    for target, before, now, lost in LOST:
        with subtests.test(target=target, before=before, now=now):
            assert is_reset_lost(target, before, now) == lost


@pytest.mark.parametrize(
    ("committed", "target", "again", "skipped"), [(1000, 4, 6, 0), (1000, 10, 0, 0), (None, 8, 0, 6), (5, 4, 1, 0)]
)
def test_only_messages_that_the_queue_has_are_counted(
    committed: int | None, target: int, again: int, skipped: int
) -> None:
    """An offset may be above the queue's end, after its topic was recreated."""
    ends = TopicOffset(min_offset=2, max_offset=10)
    move = PlannedQueueReset(MessageQueue("t", "b", 0), place(committed), ends, target, target, ResetGoal("exact"))
    assert (move.handled_again, move.skipped) == (again, skipped)
