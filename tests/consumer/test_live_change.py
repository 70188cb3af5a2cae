"""Other options for a group that runs, against a scripted broker."""

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
    """What a heartbeat says of the topic."""
    (group,) = HeartbeatData.from_json(command.body).consumer_data_set
    return next(data for data in group.subscription_data_set if data.topic == TOPIC)


async def at_work(m: Member, cached: int) -> None:
    """Wait until so many messages are cached, one of which is being handled."""
    await eventually(lambda: (q := m.queue()) and (q.cached, q.handling) == (cached, 1), "one of all is being handled")


async def change(m: Member, filter_now: str | Subscription = "*", **values: object) -> None:
    """Hand other options to a running member."""
    await m.consumer.change(group_options(subscriptions={TOPIC: filter_now}, **values))


async def store(broker: ScriptedBroker, queue: MessageQueue, *tags: str) -> None:
    """Store messages whose bodies are their tags."""
    for tag in tags:
        await broker.store(queue, tag.encode(), properties={"TAGS": tag})


# --- filters


async def test_a_changed_filter_is_told_to_the_broker_before_the_first_pull_by_it(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """With a higher version; the pull that the broker held is asked anew at the same place, and nothing is left."""
    answered = asyncio.Event()
    beat = broker._heartbeat

    async def slow_heartbeat(command: RemotingCommand) -> Reply:
        if subscribed(command).sub_string != "a || b":
            await answered.wait()
        return await beat(command)

    broker.peer.on(RequestCode.HEART_BEAT, slow_heartbeat)
    async with member(broker.peer.address, seen, subscriptions={TOPIC: "a || b"}) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "a held pull")
        changing = asyncio.create_task(change(m, "a || c"))
        await eventually(
            lambda: subscribed(broker.peer.got(RequestCode.HEART_BEAT)[-1]).sub_string == "a || c", "the news"
        )
        await store(broker, queue, "a", "b")  # brings the answer to the held pull
        await seen.has(b"a", b"b")
        old = broker.pulls[0].sub_version
        assert {pull.sub_version for pull in broker.pulls} >= {old}
        before = [pull for pull in broker.pulls if pull.topic == TOPIC]
        assert {pull.sub_version for pull in before} == {old}
        answered.set()
        await changing
        await eventually(lambda: broker.pulls[-1].sub_version != old, "a pull by the new filter")
        new = broker.pulls[-1].sub_version
        assert new > old
        assert subscribed(broker.peer.got(RequestCode.HEART_BEAT)[-1]).sub_version == new
        assert broker.pulled_offsets(queue)[-2:] == [2, 2]
        await store(broker, queue, "b", "a", "c")
        await seen.has(b"a", b"b", b"a", b"c")
    assert RequestCode.UNREGISTER_CLIENT not in {request.code for request in broker.peer.requests[:-5]}


async def test_cached_messages_that_the_new_tags_do_not_match_are_let_go(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """What handlers have is finished, the rest that is wanted is handled, and the offset passes what was let go."""
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
    """An SQL filter is the broker's to apply: what comes by it is handled whatever its tags are."""
    async with member(broker.peer.address, seen, subscriptions={TOPIC: old}) as m:
        await store(broker, queue, "a")
        await seen.has(b"a")
        await change(m, new)
        kind = "SQL92" if isinstance(new, Subscription) else "TAG"
        await eventually(lambda: broker.pulls[-1].expression_type == kind, "the new kind is pulled by")
        await store(broker, queue, "b", "b")
        await seen.has(*tags_now)


# --- the brokers' consent to SQL


# --- limits


async def test_a_changed_interval_of_commits_needs_no_restart(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        await change(m, persist_consumer_offset_interval_seconds=60.0)
        assert replace(group_options(), persist_consumer_offset_interval_seconds=60.0) == m.consumer.context.options


# --- the circuit breaker


async def test_a_reload_switches_an_open_circuit_off(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """Its group handles what waited, and tells of no circuit."""
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
