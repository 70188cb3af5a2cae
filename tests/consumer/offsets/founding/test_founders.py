"""The start offsets that one member stores for a new group: at brokers and in a broadcasting file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.offsets.local_file_store import LocalFileOffsetStore
from rmqd.consumer.offsets.new_group_check import BrokerStartOffsets, FileStartOffsets
from rmqd.consumer.offsets.start_offsets import BROKER_GRACE_SECONDS, QueueStart, StartOffsetPolicy
from rmqd.errors import SlaveOffsetMissingError
from rmqd.errors.broker_errors import AccessRefusedError, BrokerError
from rmqd.wire.command import RemotingCommand
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
    start = asyncio.create_task(start_offsets.determine_start(missing, None))
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
    assert await start_offsets.determine_start(queues[0], None) == QueueStart(2, "last_offset", is_stored=True)
    following = LocalFileOffsetStore(str(tmp_path), GROUP, clock)
    await following.open()
    assert [await following.read(queue) for queue in queues] == [2, 2]
    assert not any(map(start_offsets.is_deferred, queues))
    broker.peer.on(MAX, NOT_NOW)
    await (await in_file(client, clock, tmp_path)).store_if_new_group()  # it is no longer new


async def test_a_start_offset_stored_by_another_founder_is_kept(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    """This member has read before that the queue has none. No start is deferred."""
    [done], [missing] = broker.create_topic("done"), broker.create_topic(TOPIC)
    await client.routes.lookup(TOPIC)
    broker.offsets[GROUP, done] = 0
    start_offsets = at_brokers(client, clock, subscriptions=["done", TOPIC])
    assert await start_offsets.read_stored_offset(missing) is None
    broker.offsets[GROUP, missing] = 3
    start = asyncio.create_task(start_offsets.determine_start(missing, None))
    await clock.until(start.done, "the stored offset is noticed", 2.0)
    assert await start == QueueStart(3, "committed", is_stored=True)
    assert not start_offsets.is_deferred(missing)


async def test_a_group_unknown_to_a_slave_does_not_count_as_new(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    """Its unreachable master knows the group, so the queue of the other broker counts as added later."""
    await two.a.store(A0, b"a0")
    two.route(two.a, two.b, slaves="b")
    start_offsets = at_brokers(two_client, clock)
    with pytest.raises(SlaveOffsetMissingError):
        await start_offsets.determine_start(A0, None)
    assert two.a.offsets == two.b.offsets == {}
    two.b.offsets[GROUP, B0] = two.b.offsets[GROUP, MessageQueue(retry_topic(GROUP), "b", 0)] = 0
    two.route(two.a, two.b)
    await two_client.routes.refresh(TOPIC)
    assert await start_offsets.determine_start(A0, None) == QueueStart(0, "later_queue")


async def test_a_group_known_to_a_slave_does_not_count_as_new(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    await two.a.store(A0, b"a0")
    two.b.offsets[GROUP, MessageQueue(retry_topic(GROUP), "b", 0)] = 0
    two.route(two.a, two.b, slaves="b")
    assert await at_brokers(two_client, clock).determine_start(A0, None) == QueueStart(0, "later_queue")


@pytest.mark.parametrize(("lost", "is_stored"), [(2, True), (3, False)])
async def test_a_lost_first_commit_is_tried_three_times(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock, lost: int, is_stored: bool
) -> None:
    [queue] = broker.create_topic(TOPIC)

    def lose(command: RemotingCommand) -> Reply:
        nonlocal lost
        if command.ext_fields["topic"] != TOPIC or not lost:
            return broker.update(command)
        lost -= 1
        return Reply()

    broker.peer.on(UPDATE, lose)
    start_offsets = at_brokers(client, clock)
    assert (await start_offsets.determine_start(queue, None)).is_stored is is_stored
    assert not start_offsets.is_deferred(queue)
    assert ((GROUP, queue) in broker.offsets) is is_stored


async def test_an_error_while_stored_start_offsets_are_checked_is_raised(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    broker.create_topic(TOPIC)

    def update(command: RemotingCommand) -> Reply:
        broker.peer.on(QUERY, NOT_NOW)
        return broker.update(command)

    broker.peer.on(UPDATE, update)
    with pytest.raises(BrokerError, match="not now"):
        await at_brokers(client, clock).store_if_new_group()


async def test_an_unreadable_topic_does_not_keep_a_known_group_from_other_topics(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    [queue], [_] = broker.create_topic(TOPIC), broker.create_topic("secret")
    broker.offsets[GROUP, queue] = 7

    def query(command: RemotingCommand) -> Reply:
        return REFUSED if command.ext_fields["topic"] == "secret" else broker.query(command)

    broker.peer.on(QUERY, query)
    start_offsets = at_brokers(client, clock, subscriptions=[TOPIC, "secret"])
    await start_offsets.store_if_new_group()
    assert broker.offsets == {(GROUP, queue): 7}


async def test_a_broadcasting_group_defers_the_start_of_a_failed_broker_after_a_minute(
    two: Two, two_client: ClientInstance, clock: ManualClock, tmp_path: Path
) -> None:
    two.b.peer.on(MAX, NOT_NOW)
    start_offsets = await in_file(two_client, clock, tmp_path)
    with pytest.raises(BrokerError, match="not now"):
        await start_offsets.store_if_new_group()
    clock.turn(BROKER_GRACE_SECONDS)
    await start_offsets.store_if_new_group()
    a, b = MessageQueue(TOPIC, "a", 0), MessageQueue(TOPIC, "b", 0)
    assert (start_offsets.is_deferred(a), start_offsets.is_deferred(b)) == (False, True)


async def test_a_missing_offset_at_a_slave_does_not_prove_an_interrupted_start(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    """Even if the slave knows the offset of a higher queue."""
    await two.a.store(A0, b"a0")
    two.b.offsets[GROUP, MessageQueue(TOPIC, "b", 1)] = 5
    two.route(two.a, two.b, queues=2, slaves="b")
    start = asyncio.create_task(at_brokers(two_client, clock).determine_start(A0, None))
    await two.a.peer.received(QUERY, 3)  # for the mark, and for both queues
    await clock.advance(5.3)
    await eventually(start.done, "it waits no longer")
    assert await start == QueueStart(0, "later_queue")


async def test_a_new_group_starts_without_a_master_that_is_down_for_a_minute(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    """The queues of that broker start like the others, as far as the slave has replicated them."""
    await two.a.store(A0, b"old")
    await two.b.store(B0, b"old", store_timestamp=1000)
    await two.b.store(B0, b"new", store_timestamp=int(clock.wall() * 1000) + 1)
    two.route(two.a, two.b, slaves="b")
    await two_client.routes.refresh(TOPIC)
    start_offsets = at_brokers(two_client, clock)
    assert await tries(start_offsets, clock, B0) == (BROKER_GRACE_SECONDS, QueueStart(1, "last_offset"))
    assert (two.a.offsets[GROUP, A0], two.b.offsets) == (1, {})


async def test_a_slave_without_an_offset_of_a_known_group_counts_after_a_minute(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    """Its master may have the offset, and the group would start again at the first message."""
    two.a.offsets[GROUP, A0] = two.a.offsets[GROUP, MessageQueue(retry_topic(GROUP), "a", 0)] = 0
    two.route(two.a, two.b, slaves="b")
    await two_client.routes.refresh(TOPIC)
    start_offsets = at_brokers(two_client, clock)
    assert await tries(start_offsets, clock, B0) == (BROKER_GRACE_SECONDS, QueueStart(0, "later_queue"))
    two.b.offsets[GROUP, B0] = 7
    assert await start_offsets.read_stored_offset(B0) == 7
    two.b.offsets.clear()
    with pytest.raises(SlaveOffsetMissingError):
        await start_offsets.read_stored_offset(B0)


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_slave_stores_no_start_offset_and_a_0_from_4_9_proves_nothing(
    two: Two, two_client: ClientInstance, clock: ManualClock, is_old: bool
) -> None:
    two.route(two.a, two.b, slaves="b")
    await two_client.routes.refresh(TOPIC)
    if is_old:
        two.b.peer.version = 407
        two.b.peer.on(QUERY, Reply(ext_fields={"offset": "0"}))
    store = RemoteBrokerOffsetStore(two_client, GROUP, clock)
    with pytest.raises(SlaveOffsetMissingError):
        await store.read(B0)
    with pytest.raises(SlaveOffsetMissingError):
        await store.store_start_offset(B0, 3)
    assert not two.b.commits


@pytest.mark.parametrize(("after_ms", "start"), [(-1, 2), (0, 0)])
async def test_a_topic_created_after_the_member_starts_at_its_first_message(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock, after_ms: int, start: int
) -> None:
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"x", b"y", store_timestamp=int(clock.wall() * 1000) + after_ms)
    assert (await at_brokers(client, clock).determine_start(queue, None)).offset == start


async def test_an_unexpected_error_is_raised_and_defers_no_start(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only errors of brokers are tolerated after a while."""
    [queue] = broker.create_topic(TOPIC)
    start_offsets = await in_file(client, clock, tmp_path)
    monkeypatch.setattr(StartOffsetPolicy, "new_group_start", AsyncMock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        await start_offsets.store_if_new_group()
    assert not start_offsets.is_deferred(queue)


async def tries(start_offsets: BrokerStartOffsets, clock: ManualClock, queue: MessageQueue) -> tuple[float, QueueStart]:
    """For how long the master was awaited, and the start of the queue."""
    for seconds in range(0, 100, 5):
        try:
            return seconds, await start_offsets.determine_start(queue, await start_offsets.read_stored_offset(queue))
        except SlaveOffsetMissingError:
            clock.turn(5)
    raise AssertionError("it does not begin")
