"""What one founder does, step by step: on brokers beside others, and in the file of a member that is alone."""

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
from rmqd.consumer.offsets.start_offsets import BROKER_GRACE_SECONDS, Start
from rmqd.errors import SlaveUnawareError
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
    """One that knows no group."""
    broker.knows_groups = False
    return broker


@pytest.fixture
async def client(broker: ScriptedBroker, clock: ManualClock) -> AsyncIterator[ClientInstance]:
    """Not run: it does nothing by itself."""
    client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)), clock=clock)
    yield client
    await client.remoting.close()


@pytest.fixture
async def two_client(two: Two, clock: ManualClock) -> AsyncIterator[ClientInstance]:
    """One of two masters that know no group."""
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
) -> tuple[MessageQueue, asyncio.Task[Start]]:
    """A founder that finds an offset in one topic and none in another, and cannot know whether another one lives."""
    [done], [missing] = broker.create_topic("done"), broker.create_topic(TOPIC)
    await broker.store(missing, b"old")
    broker.offsets[GROUP, done] = 0
    start_offsets = at_brokers(client, clock, subscriptions=["done", TOPIC])
    start = asyncio.create_task(start_offsets.start(missing, None))
    await broker.peer.received(QUERY, 3)  # for the mark, and for both queues
    return missing, start


async def test_another_founder_has_five_seconds(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    """Then it is taken for a known group, and the queue for a later one: nothing is passed over."""
    _, start = await waiting(broker, client, clock)
    await clock.advance(4.9)
    assert not start.done()
    await clock.advance(0.3)
    await eventually(start.done, "it waits no longer")
    assert await start == Start(0, "later_queue")


async def test_another_founders_end_is_seen_soon_without_many_questions(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    missing, start = await waiting(broker, client, clock)
    await clock.advance(1.0)
    assert 3 * 3 <= len(broker.peer.got(QUERY)) <= 3 * 6
    broker.offsets[GROUP, missing] = 1
    broker.offsets[GROUP, MessageQueue(retry_topic(GROUP), broker.name, 0)] = 0
    await clock.advance(0.4)
    await eventually(start.done, "it waits no longer")
    assert await start == Start(1, "committed", is_stored=True)


@pytest.mark.parametrize(("lost", "is_stored"), [(2, True), (3, False)])
async def test_a_first_commit_that_the_broker_loses_is_made_three_times(
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
    start = await at_brokers(client, clock).start(queue, None)
    assert start.is_stored is is_stored
    assert ((GROUP, queue) in broker.offsets) is is_stored


@pytest.mark.parametrize("code", [QUERY, UPDATE, MAX])
async def test_a_group_is_not_founded_without_a_broker_that_fails_for_a_moment(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock, code: RequestCode
) -> None:
    [queue] = broker.create_topic(TOPIC)
    start_offsets = at_brokers(client, clock)
    broker.peer.on(code, NOT_NOW)
    with pytest.raises(BrokerError, match="not now"):
        await start_offsets.ensure()
    assert not broker.offsets
    assert not start_offsets.is_deferred(queue)


async def test_a_broker_that_fails_when_the_starts_are_looked_at_again_has_not_founded(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    broker.create_topic(TOPIC)

    def update(command: RemotingCommand) -> Reply:
        broker.peer.on(QUERY, NOT_NOW)
        return broker.update(command)

    broker.peer.on(UPDATE, update)
    with pytest.raises(BrokerError, match="not now"):
        await at_brokers(client, clock).ensure()


async def test_who_may_read_no_offset_is_told(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    broker.create_topic(TOPIC)
    broker.peer.on(QUERY, REFUSED)
    with pytest.raises(AccessRefusedError):
        await at_brokers(client, clock).ensure()
    assert not broker.offsets


async def test_a_topic_that_may_not_be_read_does_not_keep_a_known_group_from_its_others(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock
) -> None:
    [queue], [_] = broker.create_topic(TOPIC), broker.create_topic("secret")
    broker.offsets[GROUP, queue] = 7

    def query(command: RemotingCommand) -> Reply:
        return REFUSED if command.ext_fields["topic"] == "secret" else broker.query(command)

    broker.peer.on(QUERY, query)
    start_offsets = at_brokers(client, clock, subscriptions=[TOPIC, "secret"])
    await start_offsets.ensure()
    assert broker.offsets == {(GROUP, queue): 7}


async def test_a_broadcasting_group_is_founded_in_its_file(
    broker: ScriptedBroker, client: ClientInstance, clock: ManualClock, tmp_path: Path
) -> None:
    queues = broker.create_topic(TOPIC, 2)
    for queue in queues:
        await broker.store(queue, b"old", b"older")
    start_offsets = await in_file(client, clock, tmp_path)
    assert await start_offsets.start(queues[0], None) == Start(2, "last_offset", is_stored=True)
    following = LocalFileOffsetStore(str(tmp_path), GROUP, clock)
    await following.open()
    assert [await following.read(queue) for queue in queues] == [2, 2]
    assert not any(map(start_offsets.is_deferred, queues))


async def test_a_broadcasting_group_waits_a_minute_for_a_broker_that_fails_and_owes_it_a_start(
    two: Two, two_client: ClientInstance, clock: ManualClock, tmp_path: Path
) -> None:
    two.b.peer.on(MAX, NOT_NOW)
    start_offsets = await in_file(two_client, clock, tmp_path)
    with pytest.raises(BrokerError, match="not now"):
        await start_offsets.ensure()
    clock.turn(BROKER_GRACE_SECONDS)
    await start_offsets.ensure()
    a, b = MessageQueue(TOPIC, "a", 0), MessageQueue(TOPIC, "b", 0)
    assert (start_offsets.is_deferred(a), start_offsets.is_deferred(b)) == (False, True)


async def test_a_slave_that_does_not_know_the_group_makes_it_no_new_one(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    """Its master does, which is away for a moment: the queue of the other broker, which has forgotten it, is later."""
    await two.a.store(A0, b"a0")
    two.route(two.a, two.b, slaves="b")
    start_offsets = at_brokers(two_client, clock)
    with pytest.raises(SlaveUnawareError):
        await start_offsets.start(A0, None)
    assert two.a.offsets == two.b.offsets == {}
    two.b.offsets[GROUP, B0] = two.b.offsets[GROUP, MessageQueue(retry_topic(GROUP), "b", 0)] = 0
    two.route(two.a, two.b)
    await two_client.routes.refresh(TOPIC)
    assert await start_offsets.start(A0, None) == Start(0, "later_queue")


async def test_a_slave_that_knows_the_group_makes_it_a_known_one(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    await two.a.store(A0, b"a0")
    two.b.offsets[GROUP, MessageQueue(retry_topic(GROUP), "b", 0)] = 0
    two.route(two.a, two.b, slaves="b")
    assert await at_brokers(two_client, clock).start(A0, None) == Start(0, "later_queue")


async def test_what_a_slave_does_not_know_is_no_sign_of_a_founding_that_was_killed(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    """Though it knows a queue above."""
    await two.a.store(A0, b"a0")
    two.b.offsets[GROUP, MessageQueue(TOPIC, "b", 1)] = 5
    two.route(two.a, two.b, queues=2, slaves="b")
    start = asyncio.create_task(at_brokers(two_client, clock).start(A0, None))
    await two.a.peer.received(QUERY, 3)  # for the mark, and for both queues
    await clock.advance(5.3)
    await eventually(start.done, "it waits no longer")
    assert await start == Start(0, "later_queue")


async def test_a_group_begins_without_a_master_that_is_away_for_a_minute(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    """Its queues begin where the others began, as far as the slave has got."""
    await two.a.store(A0, b"old")
    await two.b.store(B0, b"old", store_timestamp=1000)
    await two.b.store(B0, b"new", store_timestamp=int(clock.wall() * 1000) + 1)
    two.route(two.a, two.b, slaves="b")
    await two_client.routes.refresh(TOPIC)
    start_offsets = at_brokers(two_client, clock)
    assert await tries(start_offsets, clock, B0) == (BROKER_GRACE_SECONDS, Start(1, "last_offset"))
    assert (two.a.offsets[GROUP, A0], two.b.offsets) == (1, {})


async def test_a_slave_that_has_no_offset_of_a_known_group_counts_after_a_minute(
    two: Two, two_client: ClientInstance, clock: ManualClock
) -> None:
    """Its master may have one, and the group would begin anew there."""
    two.a.offsets[GROUP, A0] = two.a.offsets[GROUP, MessageQueue(retry_topic(GROUP), "a", 0)] = 0
    two.route(two.a, two.b, slaves="b")
    await two_client.routes.refresh(TOPIC)
    start_offsets = at_brokers(two_client, clock)
    assert await tries(start_offsets, clock, B0) == (BROKER_GRACE_SECONDS, Start(0, "later_queue"))
    two.b.offsets[GROUP, B0] = 7
    assert await start_offsets.stored(B0) == 7
    two.b.offsets.clear()
    with pytest.raises(SlaveUnawareError):
        await start_offsets.stored(B0)


@pytest.mark.parametrize("is_old", [False, True])
async def test_a_slave_is_told_no_start_and_one_of_4_9_does_not_prove_a_0(
    two: Two, two_client: ClientInstance, clock: ManualClock, is_old: bool
) -> None:
    two.route(two.a, two.b, slaves="b")
    await two_client.routes.refresh(TOPIC)
    if is_old:
        two.b.peer.version = 407
        two.b.peer.on(QUERY, Reply(ext_fields={"offset": "0"}))
    store = RemoteBrokerOffsetStore(two_client, GROUP, clock)
    with pytest.raises(SlaveUnawareError):
        await store.read(B0)
    with pytest.raises(SlaveUnawareError):
        await store.store_start_offset(B0, 3)
    assert not two.b.commits


async def tries(start_offsets: BrokerStartOffsets, clock: ManualClock, queue: MessageQueue) -> tuple[float, Start]:
    """Where a queue begins, as its owner asks, and for how long its master was waited for."""
    for seconds in range(0, 100, 5):
        try:
            return seconds, await start_offsets.start(queue, await start_offsets.stored(queue))
        except SlaveUnawareError:
            clock.turn(5)
    raise AssertionError("it does not begin")
