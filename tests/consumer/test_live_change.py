"""Changed options of a running group, against a scripted broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.consumer.consumer_options import CircuitOptions, Subscription
from rmqd.handler_api.batch import Batch
from rmqd.wire.bodies.heartbeat_data import HeartbeatData, SubscriptionData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC, Blocked, group_options
from tests.consumer.members import Member, member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")

SQL = Subscription("price > 1", "SQL92")


def subscribed(command: RemotingCommand) -> SubscriptionData:
    """The topic's subscription in a heartbeat."""
    (group,) = HeartbeatData.from_json(command.body).consumer_data_set
    return next(data for data in group.subscription_data_set if data.topic == TOPIC)


async def at_work(m: Member, cached: int) -> None:
    """Wait until `cached` messages are cached and one of them is being handled."""
    await eventually(lambda: (q := m.queue()) and (q.cached, q.handling) == (cached, 1), "one message is being handled")


async def change(m: Member, filter_now: str | Subscription = "*", **values: object) -> None:
    """Apply other options to a running member."""
    await m.consumer.change(group_options(subscriptions={TOPIC: filter_now}, **values))


async def store(broker: ScriptedBroker, queue: MessageQueue, *tags: str) -> None:
    """Store messages whose bodies are their tags."""
    for tag in tags:
        await broker.store(queue, tag.encode(), properties={"TAGS": tag})


# --- filters


async def test_a_changed_filter_is_sent_in_a_heartbeat_before_the_first_pull(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Its version is higher. The held pull is repeated at the same offset, and the member stays in the group."""
    answered = asyncio.Event()
    beat = broker._heartbeat

    async def slow_heartbeat(command: RemotingCommand) -> Reply:
        if subscribed(command).sub_string != "a || b":
            await answered.wait()
        return await beat(command)

    broker.peer.on(RequestCode.HEART_BEAT, slow_heartbeat)
    async with member(broker.peer.address, seen, subscriptions={TOPIC: "a || b"}) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "a pull is held")
        changing = asyncio.create_task(change(m, "a || c"))
        await eventually(
            lambda: subscribed(broker.peer.got(RequestCode.HEART_BEAT)[-1]).sub_string == "a || c", "the heartbeat"
        )
        await store(broker, queue, "a", "b")  # brings the answer to the held pull
        await seen.has(b"a", b"b")
        old = broker.pulls[0].sub_version
        assert {pull.sub_version for pull in broker.pulls} >= {old}
        before = [pull for pull in broker.pulls if pull.topic == TOPIC]
        assert {pull.sub_version for pull in before} == {old}
        answered.set()
        await changing
        await eventually(lambda: broker.pulls[-1].sub_version != old, "a pull with the new filter")
        new = broker.pulls[-1].sub_version
        assert new > old
        assert subscribed(broker.peer.got(RequestCode.HEART_BEAT)[-1]).sub_version == new
        assert broker.pulled_offsets(queue)[-2:] == [2, 2]
        await store(broker, queue, "b", "a", "c")
        await seen.has(b"a", b"b", b"a", b"c")
    assert RequestCode.UNREGISTER_CLIENT not in {request.code for request in broker.peer.requests[:-5]}


async def test_cached_messages_that_do_not_match_the_new_tags_are_discarded(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """Messages in flight are finished, cached matches are handled, and the offset passes the discarded messages."""
    await store(broker, queue, "b", "a", "b", "b", "a", "b")
    seen, blocked = Seen(), Blocked()

    async def handle(batch: Batch) -> None:
        await blocked(batch)
        await seen(batch)

    values: dict[str, Any] = {"concurrency": 1, "persist_consumer_offset_interval_seconds": 0.05}
    async with member(broker.peer.address, handle, subscriptions={TOPIC: "a || b"}, **values) as m:
        await at_work(m, cached=6)
        with capture_logs() as logs:
            await change(m, "a || c", **values)
        assert [entry["let_go"] for entry in logs if entry["event"] == "group.updated"] == [3]
        assert (status := m.queue()) is not None
        assert status.cached == 3
        blocked.release.set()
        await seen.has(b"b", b"a", b"a")
        await broker.committed(GROUP, queue, 6)


@pytest.mark.parametrize(
    ("old", "new", "tags_now"),
    [("a", SQL, [b"a", b"b", b"b"]), (SQL, "b", [b"a", b"b", b"b"]), ("a", "*", [b"a", b"b", b"b"])],
)
async def test_tags_and_sql_replace_each_other(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, old: str | Subscription, new: str | Subscription,
    tags_now: list[bytes],
) -> None:  # fmt: skip
    """The broker applies an SQL filter, so rmqd handles its messages whatever their tags are."""
    async with member(broker.peer.address, seen, subscriptions={TOPIC: old}) as m:
        await store(broker, queue, "a")
        await seen.has(b"a")
        await change(m, new)
        kind = "SQL92" if isinstance(new, Subscription) else "TAG"
        await eventually(lambda: broker.pulls[-1].expression_type == kind, "a pull with the new filter")
        await store(broker, queue, "b", "b")
        await seen.has(*tags_now)


# --- limits


async def test_a_changed_commit_interval_needs_no_restart(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        await change(m, persist_consumer_offset_interval_seconds=60.0)
        assert replace(group_options(), persist_consumer_offset_interval_seconds=60.0) == m.consumer.context.options


# --- the circuit breaker


async def test_a_reload_removes_an_open_circuit(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """The group handles the waiting message, and its snapshot has no circuit."""
    is_away = True

    async def handle(_: Batch) -> None:
        if is_away:
            raise ConnectionError("connection refused")

    circuit = CircuitOptions(1, 0.0, 30.0, 3600.0)
    await store(broker, queue, "a")
    async with member(broker.peer.address, handle, circuit=circuit, max_reconsume_times=5) as m:
        await eventually(lambda: (c := m.consumer.snapshot().circuit) and c.state == "open", "the circuit is open")
        is_away = False
        await change(m, max_reconsume_times=5)
        await eventually(lambda: m.topic().handled["acked"] == 1, "the message is handled")
        assert m.consumer.snapshot().circuit is None
