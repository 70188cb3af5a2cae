"""When a member counts as gone where an operator sent it, by what it and its broker say."""

from __future__ import annotations

import pytest

from rmqd.operate.resets.reset_plan import PlannedMove, QueuePlace, ResetGoal
from rmqd.operate.resets.reset_requests import has_applied_reset, is_lost
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
) -> QueuePlace:
    """What is stored, and where a member is whose cache was made, and last given to a handler, at these times."""
    held = None if at is None else ProcessQueueInfo(at, last_lock_timestamp=made, last_consume_timestamp=handled)
    return QueuePlace(committed, "" if at is None else owner, held, is_orderly=orderly)


OBEYED = [
    # back: the broker has the target before the member has heard of it
    (10, place(50, 55), place(10, 55), False),
    (10, place(50, 55), place(10, 10), True),
    (10, place(50, 55), place(10, 30), True),
    # it has caught up between two looks: its cache is another one
    (10, place(50, 55), place(55, 55), False),
    (10, place(50, 55), place(55, 55, made=2), True),
    (10, place(50, 55), place(10, 60, made=2), True),
    # an orderly one's lock is renewed all the time, so it counts that it has handled something
    (10, place(50, 55, orderly=True), place(55, 55, made=2, orderly=True), False),
    (10, place(50, 55, orderly=True), place(55, 55, handled=2, orderly=True), True),
    # a commit that was under way has undone it, until the next
    (10, place(50, 55), place(55, 12), False),
    # forward
    (90, place(50, 55), place(90, 55), False),
    (90, place(50, 55), place(55, 55), False),
    (90, place(50, 55), place(90, 90), True),
    (90, place(50, 55), place(95, 99), True),
    (90, place(50, 55), place(55, 95), False),
    # where the member was already, ahead of its commits
    (55, place(50, 55), place(55, 55), True),
    # the queue has another owner: what the former one says is no measure
    (10, place(50, 55), place(10, 30, owner="n"), True),
    (10, place(50, 55), place(55, 60, owner="n"), False),
    # a group that had nothing stored
    (10, place(None), place(10, 10), True),
    (10, place(None), place(None), False),
    # the member says nothing: only what can come from the target alone counts
    (10, place(50), place(10), False),
    (10, place(50), place(30), True),
    (10, place(50), place(55), False),
    (90, place(50), place(90), False),
    (90, place(50), place(95), True),
    # it has the queue, and has not begun
    (10, place(50, 55), place(10, -1), False),
]


def test_a_member_has_obeyed(subtests: pytest.Subtests) -> None:
    for target, before, now, obeyed in OBEYED:
        with subtests.test(target=target, before=before, now=now):
            assert has_applied_reset(target, before, now) == obeyed


LOST = [
    (10, place(50, 55), place(10, 55), False),  # it waits for the next pull
    (10, place(50, 55), place(55, 55), True),
    (90, place(50, 55), place(55, 56), True),
    (10, place(50, 55), place(30, 30), False),
    (10, place(50, 55), place(55, 55, owner="n"), False),  # nobody knows
    (10, place(50), place(55), False),
]


def test_a_reset_is_lost(subtests: pytest.Subtests) -> None:
    """The broker takes commits again, so it has told somebody; and the member goes on where it was."""
    for target, before, now, lost in LOST:
        with subtests.test(target=target, before=before, now=now):
            assert is_lost(target, before, now) == lost


@pytest.mark.parametrize(
    ("committed", "target", "again", "skipped"), [(1000, 4, 6, 0), (1000, 10, 0, 0), (None, 8, 0, 6), (5, 4, 1, 0)]
)
def test_only_messages_that_the_queue_has_are_counted(
    committed: int | None, target: int, again: int, skipped: int
) -> None:
    """An offset may be above the queue's end, after its topic was recreated."""
    ends = TopicOffset(min_offset=2, max_offset=10)
    move = PlannedMove(MessageQueue("t", "b", 0), place(committed), ends, target, target, ResetGoal("exact"))
    assert (move.handled_again, move.skipped) == (again, skipped)
