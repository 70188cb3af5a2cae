"""Thresholds, pauses and rate limits, which keep a group from pulling."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from rmqd.handler_api.batch import Batch
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

# --- thresholds


async def test_a_threshold_stops_the_pulls_of_one_queue_only(broker: ScriptedBroker) -> None:
    """Other queues are consumed meanwhile, and the log names the flow-controlled queue."""
    held, free = broker.create_topic(TOPIC, 2)
    release = asyncio.Event()

    async def handle(batch: Batch) -> None:
        if batch.message_queue == held:
            await release.wait()

    await broker.store(held, *[b"x"] * 100)
    with capture_logs() as logs:
        async with member(
            broker.peer.address,
            handle,
            concurrency=60,
            pull_threshold_for_queue=10,
            persist_consumer_offset_interval_seconds=0.05,
        ) as m:
            await eventually(lambda: (q := m.queue(0)) and q.state == "flow_controlled", "one queue is held back")
            await broker.store(free, *[b"x"] * 50)
            await broker.committed(GROUP, free, 50)
            release.set()
            await broker.committed(GROUP, held, 100)
    [told] = [one for one in logs if one["event"] == "queue.flow_controlled" and one["times"] == 1]
    assert (told["queue"], told["reason"], told["threshold"], told["min_offset"]) == (str(held), "count", 10, 0)


# --- pauses


async def test_a_paused_group_pulls_nothing_and_hands_out_nothing(broker: ScriptedBroker, flowing: ManualClock) -> None:
    """It keeps its queues and finishes batches in flight. After the resume it continues at its offset."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"0")
    handle, bodies = Blocked(), list[bytes]()

    async def keep(batch: Batch) -> None:
        await handle(batch)
        bodies.append(batch[0].body)

    async with member(broker.peer.address, keep, clock=flowing) as m:
        await eventually(lambda: len(broker.pulled_offsets(queue)) == 2, "the next pull waits at the broker")
        m.consumer.pause()
        assert m.consumer.context.paused
        handle.release.set()
        await broker.store(queue, b"1", b"2")
        await eventually(lambda: (q := m.queue()) and q.cached == 2, "the pull in flight has returned")
        await broker.committed(GROUP, queue, 1)
        status = m.queue()
        assert status is not None
        assert status.state == "paused"
        assert m.topic().flow_control["paused"] == 1
        await broker.store(queue, b"3")
        await flowing.sleep(5)
        assert bodies == [b"0"]
        assert len(broker.pulled_offsets(queue)) == 2
        m.consumer.resume()
        await eventually(lambda: bodies == [b"0", b"1", b"2", b"3"], "all is handled")


# --- a rate limit


@pytest.mark.parametrize("rate", [20])
async def test_a_rate_limit_spaces_the_pulls(broker: ScriptedBroker, rate: int, flowing: ManualClock) -> None:
    """On average, over all queues of the group."""
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, *[b"x"] * 100)

    async def handle(batch: Batch) -> None:
        pass

    async with member(broker.peer.address, handle, clock=flowing, pull_rate_limit=rate, pull_batch_size=4) as m:
        await eventually(lambda: m.topic().received >= 8, "it has begun")
        before = m.topic().received
        await flowing.sleep(1.5)
        assert m.topic().received - before == pytest.approx(1.5 * rate, abs=10)
