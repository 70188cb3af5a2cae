"""A whole consumer with a scripted broker: its start, its stop, and its counts."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rmqd.codes import RequestCode
from rmqd.handler_api.batch import Batch
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.usefixtures("unpaced")


async def test_a_stop_does_not_wait_for_servers_that_are_down(broker: ScriptedBroker) -> None:
    """While the group still tries to join."""
    broker.peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, None)

    async def handle(batch: Batch) -> None:
        pass

    async with member(broker.peer.address, handle) as m:
        await broker.peer.received(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        assert not m.consumer.snapshot().ready
        async with asyncio.timeout(WAIT_SECONDS):
            await m.stop(shutdown_timeout_seconds=3600)
        assert m.consumer.snapshot().state == "stopped"


@pytest.mark.slow
async def test_a_broker_that_forgot_its_members_gets_a_heartbeat(broker: ScriptedBroker) -> None:
    """As after a restart. A member that is missing in the list would have no queue."""
    broker.create_topic(TOPIC, 2)

    async def handle(batch: Batch) -> None:
        pass

    async with member(broker.peer.address, handle) as m:
        await eventually(lambda: len(m.owned()) == 2, "the queues are acquired")
        rebalances, lists = (
            m.consumer.snapshot().rebalances,
            len(broker.peer.got(RequestCode.GET_CONSUMER_LIST_BY_GROUP)),
        )
        broker.members[GROUP].clear()
        await broker.peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": GROUP}, oneway=True)
        await broker.peer.received(RequestCode.GET_CONSUMER_LIST_BY_GROUP, lists + 4)
        await eventually(lambda: broker.members[GROUP] == [m.client.client_id], "the broker knows it")
        assert m.consumer.snapshot().rebalances == rebalances
        assert len(m.owned()) == 2


async def test_a_group_with_one_topic_counts_retries_under_it(broker: ScriptedBroker) -> None:
    """The counts and the queue are marked with `is_retry`."""
    broker.redelivers = True
    [queue] = broker.create_topic(TOPIC)

    async def handle(batch: Batch) -> None:
        if not batch[0].reconsume_times:
            raise RuntimeError("not yet")

    async with member(broker.peer.address, handle) as m:
        await broker.store(queue, b"o")
        await eventually(lambda: m.topic(is_retry=True).handled["acked"] == 1, "the retry is handled")
        assert m.topic(is_retry=True).topic == TOPIC
        [status] = [queue for queue in m.consumer.snapshot().queues if queue.is_retry]
        assert (status.topic, status.position) == (TOPIC, 1)


async def test_a_forced_stop_does_not_wait(broker: ScriptedBroker) -> None:
    """Even if the drain has already begun."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"x", b"x")

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset:
            await asyncio.Event().wait()

    async with member(broker.peer.address, handle) as m:
        await eventually(lambda: m.topic().handled["acked"] == 1, "one is handled")
        m.consumer.stop(shutdown_timeout_seconds=3600)
        await eventually(lambda: m.consumer.snapshot().state == "draining", "it drains")
        m.consumer.force_stop()
        async with asyncio.timeout(WAIT_SECONDS):
            await m.task
    assert broker.offsets[GROUP, queue] == 1
    assert not broker.members[GROUP]


async def test_a_hung_thread_does_not_delay_a_stop(broker: ScriptedBroker, flowing: ManualClock) -> None:
    """Once its batch was sent back at the deadline, there is nothing to wait for."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"x")
    let_go = threading.Event()

    def handle(batch: Batch) -> None:
        let_go.wait()

    async with member(broker.peer.address, handle, is_async=False, clock=flowing, consume_timeout_seconds=3.0) as m:
        await eventually(lambda: m.topic().handled["expired"] == 1, "the batch is sent back")
        async with asyncio.timeout(WAIT_SECONDS):
            await m.stop(shutdown_timeout_seconds=3600)
    let_go.set()
    assert broker.offsets[GROUP, queue] == 1
