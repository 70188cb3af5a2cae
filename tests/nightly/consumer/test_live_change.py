"""Changed options of a running group, with a scripted broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import FilterRefusedError, InvalidNameError
from rmqd.handler_api.batch import Batch
from rmqd.wire.bodies.heartbeat_data import CheckClientRequestBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.test_live_change import SQL, at_work, change, store, subscribed
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


async def test_each_change_raises_the_version_even_if_the_clock_stops(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers keep the highest version: a lower one would leave the old filter in force."""
    async with member(broker.peer.address, seen, subscriptions={TOPIC: "a"}) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "a held pull")
        monkeypatch.setattr("rmqd.runtime.clock.SystemClock.wall", lambda self: 1_000_000.0)
        for expression in ("b", "c", "a"):
            await change(m, expression)
        versions = [subscribed(command).sub_version for command in broker.peer.got(RequestCode.HEART_BEAT)]
        expressions = [subscribed(command).sub_string for command in broker.peer.got(RequestCode.HEART_BEAT)]
    changed = [versions[expressions.index("a")], versions[expressions.index("b")], versions[expressions.index("c")]]
    assert [*changed, versions[-1]] == sorted({*changed, versions[-1]})
    assert expressions[-1] == "a"


async def test_a_changed_filter_applies_to_cached_messages_of_a_paused_group(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Unwanted messages are not handled after the group resumes."""
    blocked, values = Blocked(), {"concurrency": 1}

    async def handle(batch: Batch) -> None:
        await blocked(batch)
        await seen(batch)

    await store(broker, queue, "b", "a", "b", "a")
    async with member(broker.peer.address, handle, subscriptions={TOPIC: "a || b"}, concurrency=1) as m:
        await at_work(m, cached=4)
        m.consumer.pause()
        blocked.release.set()
        await change(m, "a", **values)
        m.consumer.resume()
        await seen.has(b"b", b"a", b"a")


async def test_an_orderly_group_continues_with_the_new_filter(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Its queues stay locked, and the order is kept."""
    values: dict[str, Any] = {"consume_mode": "orderly", "persist_consumer_offset_interval_seconds": 0.05}
    blocked = Blocked()

    async def handle(batch: Batch) -> None:
        await blocked(batch)
        await seen(batch)

    await store(broker, queue, "b", "a", "b", "a")
    async with member(broker.peer.address, handle, subscriptions={TOPIC: "a || b"}, **values) as m:
        await at_work(m, cached=4)
        await change(m, "a || c", **values)
        await store(broker, queue, "c", "b", "a")
        blocked.release.set()
        await seen.has(b"b", b"a", b"a", b"c", b"a")
        await broker.committed(GROUP, queue, 7)
        assert len(broker.peer.got(RequestCode.UNLOCK_BATCH_MQ)) == 0


async def test_flow_control_ends_when_unwanted_messages_are_discarded(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    await store(broker, queue, *["b"] * 40, "a")
    blocked = Blocked()
    values: dict[str, Any] = {"concurrency": 1, "pull_threshold_for_queue": 10}
    async with member(broker.peer.address, blocked, subscriptions={TOPIC: "a || b"}, **values) as m:
        await eventually(lambda: (q := m.queue()) and q.state == "flow_controlled", "it is held back")
        await change(m, "a", **values)
        await eventually(lambda: broker.pulled_offsets(queue)[-1] == 41, "all is pulled")
        blocked.release.set()


async def test_messages_in_a_late_response_are_not_handled_twice(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The pull was replaced, and its successor returns the messages."""
    broker.answer_pull(queue, None)
    async with member(broker.peer.address, seen, subscriptions={TOPIC: "a || b"}) as m:
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "a pull that is not answered")
        await change(m, "a || c")
        await store(broker, queue, "a", "b", "c")
        await seen.has(b"a", b"c")
        assert broker.pulled_offsets(queue)[:2] == [0, 0]


@pytest.mark.parametrize("code", [ResponseCode.FILTER_DATA_NOT_EXIST, ResponseCode.FILTER_DATA_NOT_LATEST])
@pytest.mark.usefixtures("hasty")
async def test_a_broker_without_the_sql_expression_gets_a_heartbeat(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, code: ResponseCode
) -> None:
    """Codes 27 and 28: the pull is repeated at the same offset."""
    broker.answer_pull(queue, Reply(code))
    async with member(broker.peer.address, seen, subscriptions={TOPIC: SQL}):
        await store(broker, queue, "a")
        await seen.has(b"a")
    assert broker.pulled_offsets(queue)[:2] == [0, 0]
    codes = [request.code for request in broker.peer.requests if request.ext_fields.get("topic", TOPIC) == TOPIC]
    first, second = [at for at, code in enumerate(codes) if code == RequestCode.PULL_MESSAGE][:2]
    assert RequestCode.HEART_BEAT in codes[first:second]


async def test_a_busy_broker_does_not_refuse_a_filter(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    broker.peer.on(RequestCode.CHECK_CLIENT_CONFIG, Reply(ResponseCode.SYSTEM_BUSY))
    async with member(broker.peer.address, seen, subscriptions={TOPIC: SQL}):
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "it pulls")


async def test_tag_filters_are_not_checked_by_the_broker(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    async with member(broker.peer.address, seen, subscriptions={TOPIC: "a"}):
        await eventually(lambda: broker.pulled_offsets(queue) == [0], "it pulls")
    assert broker.peer.got(RequestCode.CHECK_CLIENT_CONFIG) == []


async def test_a_reset_in_the_response_to_a_replaced_pull_is_applied(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The broker reports it once, to the first pull."""
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
        await eventually(lambda: broker.pulled_offsets(queue) == [3], "the pull is replaced")
        late.set_result(broker.nothing(queue, ResponseCode.PULL_OFFSET_MOVED, 1, "OFFSET_RESET"))
        await seen.has(b"a", b"a")
        await broker.committed(GROUP, queue, 3)
        assert broker.commits_of(queue) == [1, 3]


async def test_an_invalid_expression_changes_nothing(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    async with member(broker.peer.address, seen, subscriptions={TOPIC: "a"}) as m:
        with pytest.raises(InvalidNameError, match="contains no tag"):
            await change(m, "||", pull_rate_limit=1)
        await store(broker, queue, "a", "a", "a")
        await seen.has(b"a", b"a", b"a")


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
    """The failure says what to do, and nothing is pulled."""
    broker.peer.on(RequestCode.CHECK_CLIENT_CONFIG, reply)
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(5), member(broker.peer.address, seen, subscriptions={TOPIC: SQL}) as m:
            await m.task
    assert raised.group_contains(FilterRefusedError, match=said)
    assert not broker.pulls
    (asked, *_) = broker.peer.got(RequestCode.CHECK_CLIENT_CONFIG)
    body = CheckClientRequestBody.from_json(asked.body)
    assert (body.group, body.subscription_data.topic, body.subscription_data.sub_string) == (GROUP, TOPIC, "price > 1")


async def test_a_changed_rate_limit_applies_to_waiting_pulls(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, clock: ManualClock
) -> None:
    """A limit that was much too low is lifted, and no pull waits for it any longer."""
    await broker.store(queue, *[b"x"] * 300)
    async with member(broker.peer.address, seen, clock=clock, pull_rate_limit=1) as m:
        await clock.until(lambda: len(seen.bodies) == 1, "the first message")
        await change(m, pull_rate_limit=0)
        await eventually(lambda: len(seen.bodies) == 300, "all, at once")
        await change(m, pull_rate_limit=1)
        await broker.store(queue, b"x")
        await eventually(lambda: len(seen.bodies) == 301, "the pull that was held")
        await clock.until(lambda: [pull.max_msg_nums for pull in broker.pulls][-1] == 1, "one message per pull")


async def test_changed_thresholds_and_sizes_apply_from_the_next_pull(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    await broker.store(queue, *[b"x"] * 200)
    blocked = Blocked()
    async with member(broker.peer.address, blocked, pull_threshold_for_queue=10) as m:
        await eventually(lambda: (q := m.queue()) and q.state == "flow_controlled", "it is held back")
        assert len(broker.pulled_offsets(queue)) == 1
        await change(m, pull_threshold_for_queue=100, pull_batch_size=50)
        await eventually(lambda: broker.pulled_offsets(queue) == [0, 32, 82], "two more pulls")
        assert [pull.max_msg_nums for pull in broker.pulls if pull.topic == TOPIC] == [32, 50, 50]
        blocked.release.set()


async def test_a_cancelled_change_is_reverted(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """Brokers may have the new filter already, so they get the old filter with a higher version."""
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
