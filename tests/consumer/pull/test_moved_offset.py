"""A queue whose offset an operator moves: by a push, or on the broker while the queue is held back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, Blocked
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

MOVED = ResponseCode.PULL_OFFSET_MOVED

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


def assigned(consumer: PushConsumer, queue: MessageQueue) -> AssignedQueue:
    """The queue as the consumer has it."""
    assigned = consumer._rebalance.assigned[queue]
    assert isinstance(assigned, AssignedQueue)
    return assigned


@pytest.mark.parametrize(("offset", "again"), [(1, [b"1", b"2"]), (3, [])])
async def test_a_moved_queue_goes_on_there_at_once(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, offset: int, again: list[bytes]
) -> None:
    """Though the broker holds a pull; the new offset is committed, downward too."""
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


async def test_a_restarted_queue_goes_on_where_it_was(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """A pull that is never answered is forgotten, and nothing is handled twice."""
    await broker.store(queue, b"0", b"1")
    broker.answer_pull(queue, broker.found(queue, broker.records(queue, 0, 1), 1), None)
    async with member(broker.peer.address, seen) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0, 1], "the second pull is under way")
        assigned(m.consumer, queue).restart()
        await seen.has(b"0", b"1")
    assert broker.pulled_offsets(queue)[:3] == [0, 1, 1]


@pytest.mark.parametrize("why", ["count", "paused"])
async def test_a_reset_reaches_a_queue_that_is_held_back(broker: ScriptedBroker, queue: MessageQueue, why: str) -> None:
    """It asks for one message now and then, without waiting and without taking it."""
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
        await eventually(lambda: 9 in broker.pulled_offsets(queue), "it goes on after the reset")
    assert next(offset for offset in broker.pulled_offsets(queue) if offset not in (0, 2)) == 7


def cached(m: Member) -> int:
    """How many messages of the queue are in memory."""
    held = m.queue()
    return 0 if held is None else held.cached


@pytest.mark.parametrize("why", ["count", "paused"])
async def test_what_was_pulled_is_handled_though_the_broker_let_it_go(
    broker: ScriptedBroker, queue: MessageQueue, why: str
) -> None:
    """Retention passes a queue that is held back: only the next pull begins elsewhere, and nothing unfinished is
    committed. What fails is sent to the retry topic, as the broker cannot copy it out of its log any more."""
    await broker.store(queue, *[b"%d" % number for number in range(10)])
    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, Reply(ResponseCode.SYSTEM_ERROR, "the offset is not there"))
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        await release.wait()
        raise ValueError("not now")

    options: dict[str, Any] = {"pull_threshold_for_queue": 9, "persist_consumer_offset_interval_seconds": 0.05}
    with capture_logs() as logs:
        async with member(broker.peer.address, handle, concurrency=2, **options) as m:
            await eventually(lambda: cached(m) == 10, "all are in memory")
            if why == "paused":
                m.consumer.pause()
            broker.messages[queue].clear()
            broker.first[queue] = 20
            await broker.store(queue, b"20")
            await eventually(lambda: (q := m.queue()) and q.position == 20, "the next pull is to begin there")
            assert (cached(m), broker.offsets.get((GROUP, queue), 0)) == (10, 0)
            m.consumer.resume()
            release.set()
            await broker.committed(GROUP, queue, 21)
            assert m.topic().handled["retried"] == 11
            assert m.topic().lost == 10
    assert {sent.header.topic for sent in broker.sent} == {retry_topic(GROUP)}
    assert sorted(sent.body for sent in broker.sent) == sorted([*[b"%d" % number for number in range(10)], b"20"])
    [entry] = [entry for entry in logs if entry["event"] == "offset.corrected"]
    assert (entry["offset"], entry["corrected"], entry["skipped"], entry["cached"]) == (10, 20, 10, 10)


async def test_an_offset_that_is_moved_nowhere_is_asked_for_again_after_a_while(
    broker: ScriptedBroker, queue: MessageQueue, flowing: ManualClock
) -> None:
    """What is in memory stays, and is committed once it is handled."""
    await broker.store(queue, b"0", b"1")
    broker.answer_pull(
        queue, broker.found(queue, broker.records(queue), 2), *[broker.nothing(queue, MOVED, 2, "BADLY")] * 10_000
    )
    handle = Blocked()
    async with member(broker.peer.address, handle, clock=flowing, persist_consumer_offset_interval_seconds=0.05) as m:
        await eventually(lambda: len(broker.pulled_offsets(queue)) >= 3, "it is asked again")
        await flowing.sleep(0.5)
        assert len(broker.pulled_offsets(queue)) <= 20
        assert (cached(m), broker.offsets.get((GROUP, queue), 0)) == (2, 0)
        handle.release.set()
        await broker.committed(GROUP, queue, 2)
        broker.forget_answers(queue)
        await broker.store(queue, b"2")
        await broker.committed(GROUP, queue, 3)
