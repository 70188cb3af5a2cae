"""Handlers that fail repeatedly or hang, on a broker whose delay levels are all one second."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd import Batch, DeadLetter
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from tests.conformance import behaviour
from tests.consumer.members import member
from tests.integration.consuming import dead_letter_count, dead_letters
from tests.integration.test_consumer_retries import counts
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually


@pytest.fixture
def cluster(rocketmq_short_delays: RealCluster) -> RealCluster:
    """A cluster whose retries take a second."""
    return rocketmq_short_delays


@pytest.fixture
def topic(cluster: RealCluster, request: pytest.FixtureRequest) -> str:
    """A fresh topic with 4 queues."""
    return cluster.create_topic(fresh_name(request.node.name, "topic"), 4)


async def test_failing_messages_are_retried_with_growing_levels_then_dead_lettered(
    cluster: RealCluster, topic: str, group: str
) -> None:
    """N reconsume times make N + 1 attempts, at the levels 3, 4, … Other messages are handled once."""
    other = cluster.create_topic(fresh_name("second", "topic"), 1)
    seen = Seen()

    async def handle(batch: Batch) -> None:
        await seen(batch)
        if batch[0].keys in ("bad", "worse"):
            raise ValueError("cannot be handled")

    with Producer(cluster.broker.address, topic, 4) as first, Producer(cluster.broker.address, other, 1) as second:
        for number in range(20):
            first.send(key=f"good{number}")
        first.send(b"bad body", key="bad", tags="T", properties={"colour": "red"})
        second.send(key="worse")
    options: dict[str, Any] = {"subscriptions": [topic, other], "max_reconsume_times": 2}
    async with member(cluster.nameserver, handle, group=group, **options, consume_from_where="first_offset") as one:
        await eventually(lambda: len(seen.of("bad")) == len(seen.of("worse")) == 3, "both were tried three times")
        letters = {letter.key: letter for letter in await dead_letters(cluster, group, 2)}
        handled = counts(one)
        exceptions = {t.topic: t.exceptions for t in one.consumer.snapshot().topics if t.is_retry}
        await one.stop()

    for key, name in (("bad", topic), ("worse", other)):
        attempts = seen.of(key)
        assert [attempt.reconsume_times for attempt in attempts] == [0, 1, 2]
        assert [attempt.delay_level for attempt in attempts] == [None, "3", "4"]
        assert {attempt.topic for attempt in attempts} == {name}
        assert attempts[1].queue.topic == f"%RETRY%{group}"
        letter = letters[key]
        assert letter.reconsume_times == 2
        assert letter.properties["RETRY_TOPIC"] == name
        assert letter.properties["RMQD_REASON"] == "max_reconsume_times reached"
        assert letter.properties["RMQD_EXCEPTION"].strip().endswith("ValueError: cannot be handled")
        assert letter.properties["RMQD_GROUP"] == group
    first_attempt, letter = seen.of("bad")[0], letters["bad"]
    assert letter.body == b"bad body"
    assert letter.properties["ORIGIN_MESSAGE_ID"] == seen.of("bad")[1].properties["ORIGIN_MESSAGE_ID"]
    assert {"KEYS": "bad", "TAGS": "T", "colour": "red"}.items() <= letter.properties.items()
    assert first_attempt.properties["colour"] == "red"
    assert len(seen.keys) == 20 + 3 + 3

    assert handled == {
        (topic, False): {"acked": 20, "retried": 1},
        (other, False): {"retried": 1},
        (topic, True): {"retried": 1, "dead_lettered": 1},
        (other, True): {"retried": 1, "dead_lettered": 1},
    }
    assert exceptions == {topic: {"ValueError": 2}, other: {"ValueError": 2}}
    for name in (topic, other, f"%RETRY%{group}"):
        assert offsets.committed(cluster, group, name) == offsets.stored(cluster, name), "retries are finished"


@behaviour(
    "retries",
    "If a handler exceeds consume_timeout, its batch is sent back at level 3",
    java=(
        "checked once per consumeTimeout, so after up to twice that time; its thread continues, and its "
        "result is ignored"
    ),
    rmqd="at the deadline; an asynchronous handler is cancelled, a thread is abandoned",
    checked="the broker's copy, and the other queues' pace meanwhile",
)
async def test_the_batch_of_a_hung_handler_is_sent_back_and_other_queues_continue(
    cluster: RealCluster, topic: str, group: str
) -> None:
    """The batch is sent back at level 3. Meanwhile the other queues are handled, and heartbeats are sent."""
    seen = Seen()

    async def handle(batch: Batch) -> None:
        await seen(batch)
        if batch[0].keys == "hangs" and not batch[0].reconsume_times:
            await asyncio.Event().wait()

    options: dict[str, Any] = {"subscriptions": [topic], "consume_timeout_seconds": 2.0, "concurrency": 2}
    async with member(cluster.nameserver, handle, group=group, heartbeat_seconds=0.25, **options) as one:
        await eventually(lambda: len(one.owned()) == 4, "the member has the queues")
        with Producer(cluster.broker.address, topic, 4) as producer:
            producer.send(key="hangs", queue=0)
            await eventually(lambda: seen.of("hangs"), "the handler hangs")
            begin = asyncio.get_running_loop().time()
            beats = one.client.snapshot().requests[RequestCode.HEART_BEAT].count
            sent: dict[str, float] = {}
            while one.topic().handled["expired"] == 0:
                for queue in (1, 2, 3):
                    key = f"m{len(sent)}"
                    sent[key] = asyncio.get_running_loop().time()
                    producer.send(key=key, queue=queue)
                await asyncio.sleep(0.1)
        waited = asyncio.get_running_loop().time() - begin
        beats = one.client.snapshot().requests[RequestCode.HEART_BEAT].count - beats
        await eventually(lambda: len(seen.of("hangs")) == 2, "the message is redelivered")
        await eventually(lambda: sent.keys() <= set(seen.keys), "the other messages are handled")
        await eventually(lambda: one.topic(is_retry=True).handled["acked"] == 1, "the retry is handled")
        handled = counts(one)
    assert 1.9 < waited < 3.0
    assert beats >= waited / 0.25 * 0.7
    assert max(seen.of(key)[0].at - at for key, at in sent.items()) < 0.5, "other queues do not wait"
    assert seen.of("hangs")[1].delay_level == "3"
    assert handled == {(topic, False): {"acked": len(sent), "expired": 1}, (topic, True): {"acked": 1}}


async def test_a_dead_letter_carries_as_much_of_its_exception_as_fits(
    cluster: RealCluster, topic: str, group: str
) -> None:
    """RocketMQ accepts 32,767 bytes of properties, including the broker's own properties."""

    async def handle(batch: Batch) -> None:
        raise DeadLetter("big") from RuntimeError("é" * 100_000)

    with Producer(cluster.broker.address, topic) as producer:
        producer.send(b"body" * 1000, key="k", properties={"mine": "x" * 10_000})
    async with member(
        cluster.nameserver, handle, group=group, subscriptions=[topic], consume_from_where="first_offset"
    ):
        [letter] = await dead_letters(cluster, group, 1)
    assert letter.body == b"body" * 1000
    assert letter.properties["mine"] == "x" * 10_000
    assert letter.properties["RMQD_REASON"] == "big"
    assert letter.properties["RMQD_EXCEPTION"].strip().endswith("DeadLetter: big")
    assert len(letter.properties["RMQD_EXCEPTION"].encode()) > 20_000


class NoSendBack(RemotingClient):
    """A client whose brokers reject CONSUMER_SEND_MSG_BACK."""

    async def invoke(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, str],
        body: bytes = b"",
        timeout_seconds: float = 3.0,
    ) -> RemotingCommand:
        if code == RequestCode.CONSUMER_SEND_MSG_BACK:
            return RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="look message by offset failed")
        return await super().invoke(address, code, ext_fields, body, timeout_seconds)


@behaviour(
    "retries",
    "If send-back fails, a copy is sent to the retry topic, with the same level",
    java="the same; the broker dead-letters it at once while any member holds a queue lock of the group",
    rmqd="the same; rmqd's own locks have another name, so they do not dead-letter retries",
    checked="brokers that reject send-back, with two members that hold queues",
)
async def test_messages_are_not_dead_lettered_early_if_send_back_fails(
    cluster: RealCluster, topic: str, group: str
) -> None:
    """Retries are then sent to the retry topic.

    If a lock were held under the group's own name, the broker would dead-letter each retry at once, also Java's.
    """
    seen = Seen()

    async def handle(batch: Batch) -> None:
        await seen(batch)
        if batch[0].reconsume_times < 2:
            raise RuntimeError("not yet")

    options: dict[str, Any] = {"group": group, "subscriptions": [topic]}
    async with (
        member(cluster.nameserver, handle, remoting=NoSendBack(), **options) as one,
        member(cluster.nameserver, handle, remoting=NoSendBack(), **options) as two,
    ):
        await eventually(lambda: len(one.owned()) == len(two.owned()) == 2, "both members hold queues")
        await asyncio.sleep(1.2)  # the members lock queues that they acquired without a lock
        with Producer(cluster.broker.address, topic, 4) as producer:
            for number in range(8):
                producer.send(key=f"m{number}")
        await eventually(lambda: len(seen.keys) == 24, "each message was tried three times")
        assert dead_letter_count(cluster, group) == 0
    assert sorted(attempt.reconsume_times for attempt in seen.attempts) == [0] * 8 + [1] * 8 + [2] * 8
    assert [attempt.delay_level for attempt in seen.of("m0")] == [None, "3", "4"]
    assert {attempt.topic for attempt in seen.attempts} == {topic}
