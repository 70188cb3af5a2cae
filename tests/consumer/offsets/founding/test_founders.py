"""The start offsets that one member stores for a new group: at brokers and in a broadcasting file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.offsets.local_file_store import LocalFileOffsetStore
from rmqd.consumer.offsets.new_group_check import BrokerStartOffsets, FileStartOffsets
from rmqd.consumer.offsets.start_offsets import QueueStart
from rmqd.errors import SlaveUnawareError
from rmqd.errors.broker_errors import AccessRefusedError, BrokerError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, group_options
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.waiting import eventually

QUERY, UPDATE, MAX = (
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.GET_MAX_OFFSET,
)
NOT_NOW = Reply(ResponseCode.SYSTEM_ERROR, "not now")
A0, B0 = MessageQueue(TOPIC, "a", 0), MessageQueue(TOPIC, "b", 0)
REFUSED = Reply(ResponseCode.NO_PERMISSION, "User:x has no permission to access Topic:t1")


@pytest.fixture
def broker(broker: ScriptedBroker) -> ScriptedBroker:
    """A broker that knows no group."""
    broker.knows_groups = False
    return broker


@pytest.fixture
async def client(broker: ScriptedBroker, clock: ManualClock) -> AsyncIterator[ClientInstance]:
    """A client that is not started, so it runs no background tasks."""
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)), clock=clock)
    yield client
    await client.remoting.close()


@pytest.fixture
async def two_client(two: Two, clock: ManualClock) -> AsyncIterator[ClientInstance]:
    """A client of two masters that know no group."""
    two.forget_groups()
    client = ClientInstance(ClientOptions(nameservers=(two.name_server.address,)), clock=clock)
    yield client
    await client.remoting.close()


def at_brokers(client: ClientInstance, clock: ManualClock, **options: Any) -> BrokerStartOffsets:
    return BrokerStartOffsets(client, group_options(**options), clock, RemoteBrokerOffsetStore(client, GROUP, clock))


async def in_file(client: ClientInstance, clock: ManualClock, directory: Path) -> FileStartOffsets:
    store = LocalFileOffsetStore(str(directory), GROUP, clock)
    await store.open()
    return FileStartOffsets(client, group_options(message_model="broadcasting"), clock, store)


async def waiting(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> tuple[MessageQueue, asyncio.Task[QueueStart]]:
    """Start a founder that finds an offset in one topic only. Another founder may still be at work."""
    [done], [missing] = broker.create_topic("done"), broker.create_topic(TOPIC)
    await broker.store(missing, b"old")
    broker.offsets[GROUP, done] = 0
    start_offsets = at_brokers(client, clock, subscriptions=["done", TOPIC])
    start = asyncio.create_task(start_offsets.start(missing, None))
    await broker.peer.received(QUERY, 3)  # the mark and both queues
    return missing, start


async def test_a_queue_without_an_offset_waits_five_seconds_for_another_founder(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    """Then the group counts as known and the queue as added later, so no message is skipped."""
    _, start = await waiting(broker, client, clock)
    await clock.advance(4.9)
    assert not start.done()
    await clock.advance(0.3)
    await eventually(start.done, "it waits no longer")
    assert await start == QueueStart(0, "later_queue")


async def test_the_end_of_another_founder_is_noticed_soon_with_few_queries(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    missing, start = await waiting(broker, client, clock)
    await clock.advance(1.0)
    assert 3 * 3 <= len(broker.peer.got(QUERY)) <= 3 * 6
    broker.offsets[GROUP, missing] = 1
    broker.offsets[GROUP, MessageQueue(retry_topic(GROUP), broker.name, 0)] = 0
    await clock.advance(0.4)
    await eventually(start.done, "it waits no longer")
    assert await start == QueueStart(1, "committed", is_stored=True)


@pytest.mark.parametrize("code", [QUERY, UPDATE, MAX])
async def test_no_start_offset_is_stored_while_a_broker_fails(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock, code: RequestCode
) -> None:
    [queue] = broker.create_topic(TOPIC)
    start_offsets = at_brokers(client, clock)
    broker.peer.on(code, NOT_NOW)
    with pytest.raises(BrokerError, match="not now"):
        await start_offsets.store_if_new_group()
    assert not broker.offsets
    assert not start_offsets.is_deferred(queue)


async def test_a_member_without_permission_to_query_offsets_gets_an_error(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    broker.create_topic(TOPIC)
    broker.peer.on(QUERY, REFUSED)
    with pytest.raises(AccessRefusedError):
        await at_brokers(client, clock).store_if_new_group()
    assert not broker.offsets


async def test_a_broadcasting_group_stores_start_offsets_in_its_file(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock, tmp_path: Path
) -> None:
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, b"old", b"older")
    start_offsets = await in_file(client, clock, tmp_path)
    assert await start_offsets.start(queues[0], None) == QueueStart(2, "last_offset", is_stored=True)
    following = LocalFileOffsetStore(str(tmp_path), GROUP, clock)
    await following.open()
    assert [await following.read(queue) for queue in queues] == [2, 2]
    assert not any(map(start_offsets.is_deferred, queues))


async def test_a_group_unknown_to_a_slave_does_not_count_as_new(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    """Its unreachable master knows the group, so the queue of the other broker counts as added later."""
    await two.a.store(A0, b"a0")
    two.route(two.a, two.b, slaves="b")
    start_offsets = at_brokers(two_client, clock)
    with pytest.raises(SlaveUnawareError):
        await start_offsets.start(A0, None)
    assert two.a.offsets == two.b.offsets == {}
    two.b.offsets[GROUP, B0] = two.b.offsets[GROUP, MessageQueue(retry_topic(GROUP), "b", 0)] = 0
    two.route(two.a, two.b)
    await two_client.routes.refresh(TOPIC)
    assert await start_offsets.start(A0, None) == QueueStart(0, "later_queue")


async def test_a_group_known_to_a_slave_does_not_count_as_new(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    await two.a.store(A0, b"a0")
    two.b.offsets[GROUP, MessageQueue(retry_topic(GROUP), "b", 0)] = 0
    two.route(two.a, two.b, slaves="b")
    assert await at_brokers(two_client, clock).start(A0, None) == QueueStart(0, "later_queue")
