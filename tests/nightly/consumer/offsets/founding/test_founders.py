"""Start offsets of a new group, step by step: at brokers, and in the file of a broadcasting member."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmqd.client.instance import ClientInstance
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.offsets.new_group_check import BrokerStartOffsets
from rmqd.consumer.offsets.start_offsets import BROKER_GRACE_SECONDS, QueueStart
from rmqd.errors import SlaveUnawareError
from rmqd.errors.broker_errors import BrokerError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.offsets.founding.test_founders import (
    A0,
    B0,
    MAX,
    NOT_NOW,
    QUERY,
    REFUSED,
    UPDATE,
    at_brokers,
    broker,
    client,
    in_file,
    two_client,
)
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.two_masters import Two
from tests.waiting import eventually

__all__ = ["broker", "client", "two_client"]


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
    start = await at_brokers(client, clock).start(queue, None)
    assert start.is_stored is is_stored
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
    start = asyncio.create_task(at_brokers(two_client, clock).start(A0, None))
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
    assert await start_offsets.stored(B0) == 7
    two.b.offsets.clear()
    with pytest.raises(SlaveUnawareError):
        await start_offsets.stored(B0)


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
    with pytest.raises(SlaveUnawareError):
        await store.read(B0)
    with pytest.raises(SlaveUnawareError):
        await store.store_start_offset(B0, 3)
    assert not two.b.commits


async def tries(start_offsets: BrokerStartOffsets, clock: ManualClock, queue: MessageQueue) -> tuple[float, QueueStart]:
    """For how long the master was awaited, and the start of the queue."""
    for seconds in range(0, 100, 5):
        try:
            return seconds, await start_offsets.start(queue, await start_offsets.stored(queue))
        except SlaveUnawareError:
            clock.turn(5)
    raise AssertionError("it does not begin")
