"""Thresholds and pauses that stop a group from pulling."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.handler_api.batch import LoadedHandler
from tests.client.running import running
from tests.clock import ManualClock
from tests.consumer.groups import TOPIC, Blocked, group_options
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("reason", "options", "most"),
    [
        ("count", {"pull_threshold_for_queue": 100}, 132),
        ("size", {"pull_threshold_size_for_queue_bytes": 40_000}, 40 + 32),
        ("span", {"consume_concurrently_max_span": 100}, 133),
        ("count", {"pull_threshold_for_topic": 200}, 132),
        ("size", {"pull_threshold_size_for_topic_bytes": 80_000}, 40 + 32),
    ],
)
async def test_each_threshold_alone_stops_pulling(
    broker: ScriptedBroker, reason: str, options: dict[str, Any], most: int, flowing: ManualClock
) -> None:
    """The cache exceeds it by at most one pull. The stop is counted once, shown as state, and ends with the calls."""
    [queue] = broker.create_topic(TOPIC)  # the retry queue is the second that is owned: topic thresholds are halved
    await broker.store(queue, *[b"b" * 900] * 1000)
    handle = Blocked()
    async with member(broker.peer.address, handle, clock=flowing, **options) as m:
        await eventually(lambda: (q := m.queue()) and q.state == "flow_controlled", "pulling has stopped")
        pulls = len(broker.pulled_offsets(queue))
        await flowing.sleep(5)
        status = m.queue()
        assert status is not None
        assert most - 32 <= status.cached <= most
        assert len(broker.pulled_offsets(queue)) == pulls
        flow_control = m.topic().flow_control
        assert {name for name, count in flow_control.items() if count} == {reason}
        assert status.handling == 20
        await eventually(lambda: m.topic().held_seconds[reason] > 0, "the time is counted while it lasts")
        handle.release.set()
        await eventually(lambda: m.topic().handled["acked"] == 1000, "all is handled")


async def test_a_group_may_be_paused_before_it_runs(broker: ScriptedBroker) -> None:
    """As after a restart of a group that an operator paused."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"0")
    handle = Blocked()
    handle.release.set()
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
    consumer = PushConsumer(group_options(), LoadedHandler("h", handle, True, None, None), client)
    consumer.pause()
    async with running(client.run()):
        task = asyncio.create_task(consumer.run())
        await eventually(lambda: consumer.snapshot().assigned == {TOPIC: 1}, "it acquires its queues")
        await asyncio.sleep(0.1)
        assert not broker.pulled_offsets(queue)
        consumer.resume()
        await eventually(lambda: broker.pulled_offsets(queue) == [0, 1], "it pulls")
        consumer.stop()
        await task
