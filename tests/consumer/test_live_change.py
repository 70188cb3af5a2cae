"""Other options for a group that runs, against a scripted broker."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.consumer_options import CircuitOptions, Subscription
from rmqd.errors import FilterRefusedError, InvalidNameError
from rmqd.handler_api.batch import Batch
from rmqd.wire.bodies.heartbeat_data import CheckClientRequestBody, HeartbeatData, SubscriptionData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
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


async def test_a_reset_told_in_the_answer_to_a_pull_that_counts_no_more_is_obeyed(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The broker tells it once, to whichever pull comes first."""
    held = asyncio.Event()
    late: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def hold_the_first(command: RemotingCommand) -> Reply | None:
        if command.ext_fields["topic"] == TOPIC and not held.is_set():
            held.set()
            return await late
        return await broker._pull(command)

    broker.peer.on(RequestCode.PULL_MESSAGE, hold_the_first)
    await store(broker, queue, "a", "a", "a")
    broker.offsets[GROUP, queue] = 3
    values: dict[str, Any] = {"persist_consumer_offset_interval_seconds": 0.05}
    async with member(broker.peer.address, seen, subscriptions={TOPIC: "a || b"}, **values) as m:
        await held.wait()
        await change(m, "a || c", **values)
        await eventually(lambda: broker.pulled_offsets(queue) == [3], "it is asked anew")
        late.set_result(broker.nothing(queue, ResponseCode.PULL_OFFSET_MOVED, 1, "OFFSET_RESET"))
        await seen.has(b"a", b"a")
        await broker.committed(GROUP, queue, 3)
        assert broker.commits_of(queue) == [1, 3]


async def test_an_expression_that_is_none_changes_nothing(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    async with member(broker.peer.address, seen, subscriptions={TOPIC: "a"}) as m:
        with pytest.raises(InvalidNameError, match="contains no tag"):
            await change(m, "||", pull_rate_limit=1)
        await store(broker, queue, "a", "a", "a")
        await seen.has(b"a", b"a", b"a")


# --- the brokers' consent to SQL


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(ResponseCode.SYSTEM_ERROR, "The broker does not support consumer to filter message by SQL92"),
         r"a \(127.*\) filters by tags only: set enablePropertyFilter=true there"),
        (Reply(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "Encountered \"\n >\""),
         r"a \(127.*\) refuses the SQL filter 'price > 1': Encountered \" >\""),
        (Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 46 not supported"), "46 not supported"),
    ],
)  # fmt: skip
async def test_a_refused_sql_filter_fails_the_group_before_it_joins(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, reply: Reply, said: str
) -> None:
    """The failure says what to do; no heartbeat names the group, and nothing is pulled."""
    broker.peer.on(RequestCode.CHECK_CLIENT_CONFIG, reply)
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(5), member(broker.peer.address, seen, subscriptions={TOPIC: SQL}) as m:
            await m.task
    assert raised.group_contains(FilterRefusedError, match=said)
    assert not broker.pulls
    (asked, *_) = broker.peer.got(RequestCode.CHECK_CLIENT_CONFIG)
    body = CheckClientRequestBody.from_json(asked.body)
    assert (body.group, body.subscription_data.topic, body.subscription_data.sub_string) == (GROUP, TOPIC, "price > 1")


# --- limits


async def test_a_changed_rate_limit_holds_for_who_waits_already(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, clock: ManualClock
) -> None:
    """A limit that was much too low is lifted: nothing waits for what the old one asked for."""
    await broker.store(queue, *[b"x"] * 300)
    async with member(broker.peer.address, seen, clock=clock, pull_rate_limit=1) as m:
        await clock.until(lambda: len(seen.bodies) == 1, "the first message")
        await change(m, pull_rate_limit=0)
        await eventually(lambda: len(seen.bodies) == 300, "all, at once")
        await change(m, pull_rate_limit=1)
        await broker.store(queue, b"x")
        await eventually(lambda: len(seen.bodies) == 301, "the pull that was held")
        await clock.until(lambda: [pull.max_msg_nums for pull in broker.pulls][-1] == 1, "one at a time is asked for")


async def test_changed_thresholds_and_sizes_hold_from_the_next_pull_on(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    await broker.store(queue, *[b"x"] * 200)
    blocked = Blocked()
    async with member(broker.peer.address, blocked, pull_threshold_for_queue=10) as m:
        await eventually(lambda: (q := m.queue()) and q.state == "flow_controlled", "it is held back")
        assert len(broker.pulled_offsets(queue)) == 1
        await change(m, pull_threshold_for_queue=100, pull_batch_size=50)
        await eventually(lambda: broker.pulled_offsets(queue) == [0, 32, 82], "two pulls more")
        assert [pull.max_msg_nums for pull in broker.pulls if pull.topic == TOPIC] == [32, 50, 50]
        blocked.release.set()


async def test_a_changed_interval_of_commits_needs_no_restart(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        await change(m, persist_consumer_offset_interval_seconds=60.0)
        assert replace(group_options(), persist_consumer_offset_interval_seconds=60.0) == m.consumer._context.options


async def test_a_change_that_is_given_up_is_taken_back(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """Brokers may have heard of it: they are told the old filter as one that is newer still."""
    beat, go_on = broker._heartbeat, asyncio.Event()
    async with member(broker.peer.address, seen) as m:
        await eventually(lambda: m.queue(), "it consumes")

        async def slow_heartbeat(command: RemotingCommand) -> Reply:
            await go_on.wait()
            return await beat(command)

        broker.peer.on(RequestCode.HEART_BEAT, slow_heartbeat)
        before = len(broker.peer.got(RequestCode.HEART_BEAT))
        changing = asyncio.create_task(change(m, "a"))
        await broker.peer.received(RequestCode.HEART_BEAT, before + 1)
        changing.cancel()
        await asyncio.wait((changing,))
        go_on.set()
        beats = await broker.peer.received(RequestCode.HEART_BEAT, before + 2)
        told, last = subscribed(beats[before]), subscribed(beats[-1])
        assert (told.sub_string, last.sub_string) == ("a", "*")
        assert last.sub_version > told.sub_version
        await store(broker, queue, "a", "b")
        await seen.has(b"a", b"b")


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
