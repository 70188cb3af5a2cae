"""`rmqd send`."""

from __future__ import annotations

import asyncio
import time

import pytest

from rmqd import Message, MessageQueue
from rmqd.client.api.admin_requests import view_message
from rmqd.client.api.offset_requests import get_max_offset
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.wire.messages.decode import decode_messages
from tests.cli.command import rmqd
from tests.conformance import behaviour
from tests.rocketmq.cluster import RealCluster
from tests.waiting import eventually

pytestmark = pytest.mark.process

DELAYS = behaviour(
    "sending",
    "With a time the broker's timer keeps the message",
    java="Message.setDeliverTimeMs, setDelayTimeMs",
    rmqd="--deliver-at, --delay",
    checked="the stored message, its arrival, and a delay that is too long",
    since="5.0",
)


def stored(cluster: RealCluster, offset_msg_id: str) -> Message:
    """The message that the broker holds under this id."""

    async def view() -> bytes | None:
        remoting = RemotingClient()
        try:
            return await view_message(remoting, cluster.broker.address, int(offset_msg_id[-16:], 16))
        finally:
            await remoting.close()

    record = asyncio.run(view())
    assert record is not None
    return decode_messages(record, MessageQueue("", "", 0)).messages[0]


def test_the_message_is_stored_as_asked(rocketmq: RealCluster, topic: str) -> None:
    ended = rmqd(
        *("send", topic, "für dich", "--keys", "order-17 c-4", "--tags", "paid", "-p", "region=eu", "-p", "sum=a=b"),
        *("--nameserver", rocketmq.nameserver, "-o", "json"),
    )

    assert ended.code == 0, ended.err
    (document,) = ended.json()
    message = stored(rocketmq, document["offset_msg_id"])
    assert message.body.decode() == "für dich"
    assert (message.keys, message.tags) == ("order-17 c-4", "paid")
    assert (message.properties["region"], message.properties["sum"]) == ("eu", "a=b")
    assert (message.record_topic, message.queue_offset) == (topic, document["offset"])
    assert (message.msg_id, document["topic"], document["status"]) == (document["msg_id"], topic, "SUCCESS")


def test_a_body_from_standard_input_keeps_its_bytes(rocketmq: RealCluster, topic: str) -> None:
    ended = rmqd("send", topic, "-", "-n", rocketmq.nameserver, "-o", "json", stdin=b"\x00\xff\n")

    assert stored(rocketmq, ended.json()[0]["offset_msg_id"]).body == b"\x00\xff\n"


def test_several_messages_are_spread_over_the_queues(rocketmq: RealCluster, topic: str) -> None:
    ended = rmqd("send", topic, "x", "--count", "100", "-n", rocketmq.nameserver, "-o", "json")

    sent = ended.json()
    assert len({document["msg_id"] for document in sent}) == 100
    assert {document["queue"] for document in sent} == set(range(8))
    assert len({(document["queue"], document["offset"]) for document in sent}) == 100


def test_text_output_has_a_line_for_each_message(rocketmq: RealCluster, topic: str) -> None:
    ended = rmqd("send", topic, "x", "--count", "2", "-n", rocketmq.nameserver)

    lines = ended.out.splitlines()
    assert len(lines) == 2
    assert all(topic in line and "offset 0" in line for line in lines)
    assert ended.err == ""


@behaviour(
    "sending",
    "With a delay level the broker keeps the message",
    java="Message.setDelayTimeLevel",
    rmqd="--delay-level",
    checked="the stored message",
)
def test_a_delayed_message_waits_at_the_broker(rocketmq: RealCluster, topic: str) -> None:
    ended = rmqd("send", topic, "later", "--delay-level", "18", "-n", rocketmq.nameserver, "-o", "json")

    message = stored(rocketmq, ended.json()[0]["offset_msg_id"])
    assert (message.record_topic, message.properties["REAL_TOPIC"]) == ("SCHEDULE_TOPIC_XXXX", topic)


def test_a_delayed_message_is_not_sent_to_a_broker_without_timers(rocketmq: RealCluster, topic: str) -> None:
    """Such a broker would deliver the message at once."""
    if not rocketmq.spec.version.startswith("4"):
        pytest.skip("brokers since 5.0 have timers")
    ended = rmqd("send", topic, "later", "--delay", "1h", "-n", rocketmq.nameserver)

    assert ended.code == 1
    assert "is older than RocketMQ 5.0" in ended.err
    assert "0 of 1 messages were sent" in ended.err


@DELAYS
def test_a_message_waits_for_its_time_at_the_broker(rocketmq: RealCluster, topic: str) -> None:
    at_ms = round(time.time() + 3600) * 1000
    ended = rmqd("send", topic, "later", "--deliver-at", f"@{at_ms}", "-n", rocketmq.nameserver, "-o", "json")

    assert ended.code == 0, ended.err
    message = stored(rocketmq, ended.json()[0]["offset_msg_id"])
    assert (message.record_topic, message.properties["REAL_TOPIC"]) == ("rmq_sys_wheel_timer", topic)
    assert message.properties["TIMER_DELIVER_MS"] == str(at_ms)


@DELAYS
def test_a_refused_delay_is_reported_with_the_broker_s_reason(rocketmq: RealCluster, topic: str) -> None:
    ended = rmqd("send", topic, "later", "--delay", "10d", "-n", rocketmq.nameserver)

    assert ended.code == 1
    assert "the delay time should not be bigger than the max delay 259200000ms" in ended.err
    assert "0 of 1 messages were sent" in ended.err


@DELAYS
def test_a_delayed_message_arrives_in_its_topic(rocketmq: RealCluster, topic: str) -> None:
    sent = rmqd("send", topic, "soon", "--delay", "2s", "--queue", "3", "-n", rocketmq.nameserver, "-o", "json")
    assert sent.code == 0, sent.err

    async def wait_for_it() -> int:
        remoting = RemotingClient()
        try:
            queue = MessageQueue(topic, "broker-a", 3)
            return await eventually(lambda: get_max_offset(remoting, rocketmq.broker.address, queue), "it arrives", 30)
        finally:
            await remoting.close()

    assert asyncio.run(wait_for_it()) == 1


@behaviour(
    "sending",
    "Messages of one sharding key go to one queue, in order",
    java="MessageQueueSelector, such as SelectMessageQueueByHash",
    rmqd="--sharding-key, with the queue that Java's hash gives; or --queue",
    checked="the queues in which the broker stored twenty of them",
)
def test_messages_of_one_sharding_key_go_to_one_queue_in_order(rocketmq: RealCluster, topic: str) -> None:
    arguments = ("send", topic, "x", "--count", "20", "-n", rocketmq.nameserver, "-o", "json")
    sent = rmqd(*arguments, "--sharding-key", "TagA").json()

    # Java: "TagA".hashCode() is 2598919, and 2598919 % 8 is 7
    assert {document["queue"] for document in sent} == {7}
    assert [document["offset"] for document in sent] == list(range(20))
    assert stored(rocketmq, sent[0]["offset_msg_id"]).properties["__SHARDINGKEY"] == "TagA"


def test_a_queue_that_the_topic_does_not_have_is_refused(rocketmq: RealCluster, topic: str) -> None:
    ended = rmqd("send", topic, "x", "--queue", "8", "-n", rocketmq.nameserver)

    assert ended.code == 1
    assert f"{topic} has no writable queue 8; expected one of broker-a:0 to broker-a:7" in ended.err
