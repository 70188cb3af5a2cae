"""A queue whose offset an operator moves: by a push, or on the broker while the queue is held back."""

from __future__ import annotations

import pytest

from rmqd.codes import ResponseCode
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.groups import GROUP, Blocked
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

MOVED = ResponseCode.PULL_OFFSET_MOVED

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


def assigned(consumer: PushConsumer, queue: MessageQueue) -> AssignedQueue:
    """The consumer's assignment of the queue."""
    assigned = consumer._rebalance.assigned[queue]
    assert isinstance(assigned, AssignedQueue)
    return assigned


@pytest.mark.parametrize(("offset", "again"), [(1, [b"1", b"2"]), (3, [])])
async def test_a_moved_queue_continues_at_the_new_offset_at_once(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, offset: int, again: list[bytes]
) -> None:
    """Although the broker holds a pull. The new offset is committed, also downward."""
    await broker.store(queue, b"0", b"1", b"2")
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        await seen.has(b"0", b"1", b"2")
        await broker.committed(GROUP, queue, 3)
        await eventually(lambda: broker.pulled_offsets(queue)[-1] == 3, "a pull waits at the end")
        assigned(m.consumer, queue).move_to(offset)
        await seen.has(b"0", b"1", b"2", *again)
        await eventually(lambda: broker.pulled_offsets(queue).count(offset) >= 1, "it is pulled there")
        if again:
            await eventually(lambda: offset in broker.commits_of(queue), "the move is committed")
        await broker.committed(GROUP, queue, 3)


async def test_a_restarted_pull_loop_continues_at_its_offset(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The unanswered pull is forgotten, and nothing is handled twice."""
    await broker.store(queue, b"0", b"1")
    broker.answer_pull(queue, broker.found(queue, broker.records(queue, 0, 1), 1), None)
    async with member(broker.peer.address, seen) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0, 1], "the second pull is in flight")
        assigned(m.consumer, queue).restart_loop()
        await seen.has(b"0", b"1")
    assert broker.pulled_offsets(queue)[:3] == [0, 1, 1]


@pytest.mark.parametrize("why", ["count", "paused"])
async def test_a_reset_reaches_a_queue_that_is_held_back(broker: ScriptedBroker, queue: MessageQueue, why: str) -> None:
    """It pulls one message from time to time, without waiting, and discards it."""
    await broker.store(queue, *[b"%d" % number for number in range(9)])
    handle = Blocked()
    async with member(broker.peer.address, handle, concurrency=1, pull_threshold_for_queue=1, pull_batch_size=2) as m:

        def cached() -> int:
            held = m.queue()
            return 0 if held is None else held.cached

        await eventually(lambda: cached() == 2, "two are cached")
        if why == "paused":
            m.consumer.pause()
        await eventually(lambda: (1, 0) in {(p.max_msg_nums, p.sys_flag) for p in broker.pulls}, "it is probed")
        assert cached() == 2
        broker.answer_pull(queue, broker.nothing(queue, MOVED, 7, "OFFSET_RESET"))
        await broker.committed(GROUP, queue, 7)
        handle.release.set()
        m.consumer.resume()
        await eventually(lambda: 9 in broker.pulled_offsets(queue), "it continues after the reset")
    assert next(offset for offset in broker.pulled_offsets(queue) if offset not in (0, 2)) == 7


def cached(m: Member) -> int:
    """How many messages of the queue are in memory."""
    held = m.queue()
    return 0 if held is None else held.cached
