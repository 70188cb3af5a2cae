"""A member's responses to an operator's requests, which brokers pass on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields

import pytest

from rmqd.client.group_reader import MemberReport
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.consumer_options import CircuitOptions, ConsumerOptions
from rmqd.handler_api.batch import Batch
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo, GetConsumerStatusBody, ResetOffsetBody
from rmqd.wire.bodies.json_body import queue_to_dict
from rmqd.wire.command import RemotingCommand
from rmqd.wire.loose_json import dumps
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import retry_topic
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import member
from tests.consumer.scripted_broker import BROKER, ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

RESET = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
STATUS = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")


class Holding(Blocked):
    """A blocked handler that sets `begun` when it has a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    async def __call__(self, batch: Batch) -> None:
        self.begun.set()
        await super().__call__(batch)


def reset_fields(topic: str = TOPIC, group: str = GROUP) -> dict[str, str]:
    return {"topic": topic, "group": group, "timestamp": "0", "isForce": "false", "queueId": "-1"}


def as_map(table: Mapping[MessageQueue, int]) -> bytes:
    return ResetOffsetBody(dict(table)).to_json()


def as_list(table: Mapping[MessageQueue, int]) -> bytes:
    """The form for C++ clients."""
    return dumps({"offsetTable": [{**queue_to_dict(queue), "offset": offset} for queue, offset in table.items()]})


def info_fields(jstack: bool = False) -> dict[str, str]:
    return {"consumerGroup": GROUP, "clientId": "x", "jstackEnable": str(jstack).lower()}


async def running_info(broker: ScriptedBroker, jstack: bool = False) -> ConsumerRunningInfo:
    answer = await broker.peer.ask(INFO, info_fields(jstack))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return ConsumerRunningInfo.from_json(answer.body)


def busy_once(broker: ScriptedBroker) -> Callable[[RemotingCommand], Reply]:
    """Refuse the next commit and accept later ones."""

    def update(command: RemotingCommand) -> Reply:
        broker.peer.on(UPDATE, broker.update)
        return Reply(ResponseCode.SYSTEM_BUSY, "too many requests")

    return update


# --- 220


@pytest.mark.parametrize("form", [as_map, as_list])
async def test_a_pushed_reset_moves_the_groups_queues(broker: ScriptedBroker, seen: Seen, form: type) -> None:
    """Only this member's queues of the topic; other queues in the list belong to other members."""
    first, second = broker.create_topic(TOPIC, 2)
    await broker.store(first, b"0", b"1")
    await broker.store(second, b"a", b"b")
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05):
        await broker.committed(GROUP, first, 2)
        await broker.committed(GROUP, second, 2)
        seen.attempts.clear()
        foreign = {MessageQueue(TOPIC, "elsewhere", 0): 0, MessageQueue("other", BROKER, 0): 0}
        await broker.peer.push(RESET, reset_fields(), form({first: 1, **foreign}), oneway=True)
        await seen.has(b"1")
        await eventually(lambda: 1 in broker.commits_of(first), "the new offset is committed")
        await broker.committed(GROUP, first, 2)
    assert 1 not in broker.commits_of(second)


@pytest.mark.parametrize("why", ["full", "paused"])
async def test_a_pushed_reset_moves_a_full_or_paused_queue(
    broker: ScriptedBroker, queue: MessageQueue, why: str
) -> None:
    """At once, without a pull: the cached messages are discarded and the new offset is committed."""
    await broker.store(queue, *[b"%d" % number for number in range(9)])
    handle = Blocked()
    async with member(broker.peer.address, handle, concurrency=1, pull_threshold_for_queue=1, pull_batch_size=2) as m:
        await eventually(lambda: (held := m.queue()) is not None and held.cached == 2, "two messages are cached")
        if why == "paused":
            m.consumer.pause()
        await broker.peer.push(RESET, reset_fields(), as_map({queue: 7}), oneway=True)
        await broker.committed(GROUP, queue, 7)
        handle.release.set()
        m.consumer.resume()
        await eventually(lambda: 9 in broker.pulled_offsets(queue), "pulls continue after the reset")
    assert [offset for offset in broker.pulled_offsets(queue) if 2 < offset < 7] == []


@asynccontextmanager
async def reset_while_it_stops(broker: ScriptedBroker, queue: MessageQueue, offset: int) -> AsyncIterator[None]:
    """Push a reset to a member that stops, while its handler still has a batch. The batch ends after the block."""
    await broker.store(queue, b"0", b"1", b"2")
    handle = Holding()
    async with member(broker.peer.address, handle, concurrency=1, consume_message_batch_max_size=2) as m:
        await handle.begun.wait()
        m.consumer.stop()
        await eventually(lambda: m.consumer.snapshot().state == "draining", "the member drains")
        await broker.peer.push(RESET, reset_fields(), as_map({queue: offset}), oneway=True)
        await broker.peer.ask(STATUS, {"topic": TOPIC, "group": GROUP})
        yield
        handle.release.set()
        await m.task


async def test_a_reset_during_a_stop_is_committed_for_the_next_owner(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """When the batch in flight ends, the reset offset is committed instead of the batch's offset."""
    async with reset_while_it_stops(broker, queue, 0):
        pass
    assert broker.offsets[GROUP, queue] == 0


async def test_a_reset_during_a_stop_is_committed_although_the_broker_is_busy(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """Its commit is retried like the last commit, because no other member knows the new offset."""
    async with reset_while_it_stops(broker, queue, 1):
        broker.peer.on(UPDATE, busy_once(broker))
    assert broker.offsets[GROUP, queue] == 1


# --- 221, 307


async def test_status_returns_the_offsets_of_a_topic(broker: ScriptedBroker, seen: Seen) -> None:
    """They include handled messages that are not committed yet."""
    first, second = broker.create_topic(TOPIC, 2)
    await broker.store(first, b"0", b"1")
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=600):
        await seen.has(b"0", b"1")
        answer = await broker.peer.ask(STATUS, {"topic": TOPIC, "group": GROUP})
        assert GetConsumerStatusBody.from_json(answer.body).message_queue_table == {first: 2, second: 0}
        other = await broker.peer.ask(STATUS, {"topic": "other", "group": GROUP})
        assert GetConsumerStatusBody.from_json(other.body).message_queue_table == {}


async def test_running_info_describes_the_member(broker: ScriptedBroker, queue: MessageQueue) -> None:
    await broker.store(queue, *[b"%d" % number for number in range(9)])
    handle = Blocked()
    async with member(broker.peer.address, handle, concurrency=3, subscriptions={TOPIC: "a || b"}) as m:
        await eventually(lambda: m.queue() is not None, "it runs")
        info = await running_info(broker)
        handle.release.set()
    assert {name: value for name, value in info.properties.items() if name.startswith("PROP_")} == {
        "PROP_CLIENT_VERSION": "V5_5_0",
        "PROP_CONSUMEORDERLY": "false",
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMER_START_TIMESTAMP": info.properties["PROP_CONSUMER_START_TIMESTAMP"],
        "PROP_NAMESERVER_ADDR": f"{broker.peer.address};",
        "PROP_THREADPOOL_CORE_SIZE": "3",
    }
    assert [(s.topic, s.sub_string) for s in info.subscription_set] == [(TOPIC, "a || b"), (retry_topic(GROUP), "*")]
    assert info.mq_table.keys() == {queue, MessageQueue(retry_topic(GROUP), BROKER, 0)}
    assert info.status_table.keys() == {TOPIC, retry_topic(GROUP)}
    assert info.user_consumer_info["state"] == "running"
    assert info.jstack is None


async def test_a_queue_that_waits_for_the_circuit_is_not_reported_as_paused(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """`rmqd diagnose` would report that an operator paused the queue."""

    async def handle(_: Batch) -> None:
        raise ConnectionError("connection refused")

    await broker.store(queue, b"first", b"second")
    async with member(broker.peer.address, handle, circuit=CircuitOptions(1, 0.0, 30.0, 3600.0)) as m:
        await eventually(lambda: (c := m.consumer.snapshot().circuit) and c.state == "open", "the circuit is open")
        info = await running_info(broker)
    report = MemberReport(client_id="one", connections={}, info=info)
    assert (report.waits_for_circuit, report.paused_queues) == (True, "")


async def test_running_info_has_every_option_under_javas_name(broker: ScriptedBroker, queue: MessageQueue) -> None:
    """In Java's units: consumeTimeout in minutes, sizes in MiB, the rest in milliseconds."""
    async with member(broker.peer.address, Seen()) as m:
        await eventually(lambda: m.queue() is not None, "it runs")
        found = (await running_info(broker)).properties
    assert (
        found.items()
        >= {
            "allocateMessageQueueStrategy": "AVG",
            "awaitTerminationMillisWhenShutdown": "5000",
            "consumeConcurrentlyMaxSpan": "2000",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "consumeMessageBatchMaxSize": "1",
            "consumeThreadMax": "20",
            "consumeThreadMin": "20",
            "consumeTimeout": "15",
            "consumerGroup": GROUP,
            "instanceName": "DEFAULT",
            "maxReconsumeTimes": "-1",
            "messageModel": "CLUSTERING",
            "namesrvAddr": broker.peer.address,
            "persistConsumerOffsetInterval": "5000",
            "pullBatchSize": "32",
            "pullInterval": "0",
            "pullThresholdForQueue": "1000",
            "pullThresholdForTopic": "-1",
            "pullThresholdSizeForQueue": "100",
            "pullThresholdSizeForTopic": "-1",
            "subscription": f"{TOPIC}=*",
            "suspendCurrentQueueTimeMillis": "1000",
            "vipChannelEnabled": "false",
        }.items()
    )
    client, tools, twice, unset = 9, 6, 1, 7
    assert len(found) == len(fields(ConsumerOptions)) + client + tools + twice - unset


async def test_requests_with_an_unknown_group_or_code_are_refused(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    async with member(broker.peer.address, seen) as m:
        await eventually(lambda: m.queue() is not None, "it runs")
        unknown = await broker.peer.ask(INFO, {**info_fields(), "consumerGroup": "nobody"})
        assert (unknown.code, "nobody" in (unknown.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
        for code in (RequestCode.CHECK_TRANSACTION_STATE, RequestCode(4711)):
            answer = await broker.peer.ask(code, {"consumerGroup": GROUP})
            assert (answer.code, str(int(code)) in (answer.remark or "")) == (
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                True,
            )
        incomplete = await broker.peer.ask(STATUS, {"group": GROUP})
        assert incomplete.code == ResponseCode.SYSTEM_ERROR
