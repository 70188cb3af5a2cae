"""Handlers that fail, decline and decide, on a broker whose delay levels are all of one second."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd import Batch, DeadLetter, Retry
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.command import RemotingCommand
from tests.conformance import behaviour
from tests.consumer.members import Member, member
from tests.integration.consuming import dead_letter_count, dead_letters
from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually


@pytest.fixture
def cluster(rocketmq_short_delays: RealCluster) -> RealCluster:
    """Where a retry takes a second."""
    return rocketmq_short_delays


@pytest.fixture
def topic(cluster: RealCluster, request: pytest.FixtureRequest) -> str:
    """A fresh topic with 4 queues."""
    return cluster.create_topic(fresh_name(request.node.name, "topic"), 4)


def counts(one: Member) -> dict[tuple[str, bool], dict[str, int]]:
    """What was handled, by topic and whether it was a retry, without zeros."""
    return {
        (topic.topic, topic.is_retry): {result: count for result, count in topic.handled.items() if count}
        for topic in one.consumer.snapshot().topics
    }


async def test_each_message_of_a_batch_goes_its_own_way(cluster: RealCluster, topic: str, group: str) -> None:
    """Acknowledged, retried soon, dead-lettered at once, and the rest by the exception."""
    seen = Seen()

    async def handle(batch: Batch) -> None:
        await seen(batch)
        if batch[0].reconsume_times:
            return
        for message in batch:
            if message.keys == "retry":
                batch.retry(message, delay_level=1)
            elif message.keys == "dead":
                batch.dead_letter(message, reason="never wanted")
            elif message.keys == "done":
                batch.ack(message)
        raise Retry(delay_level=5)

    with Producer(cluster.broker.address, topic) as producer:
        producer.send_batch(["done", "retry", "dead", "rest"], queue=0)
    async with member(
        cluster.nameserver,
        handle,
        group=group,
        subscriptions=[topic],
        consume_message_batch_max_size=4,
        consume_from_where="first_offset",
    ) as one:
        await eventually(lambda: len(seen.keys) == 6, "two messages came again")
        [letter] = await dead_letters(cluster, group, 1)
        handled = counts(one)
    assert len({attempt.at for attempt in seen.attempts[:4]}) == 1, "they were one batch"
    assert {attempt.key: attempt.delay_level for attempt in seen.attempts[4:]} == {"retry": "1", "rest": "5"}
    assert (letter.key, letter.reconsume_times, letter.properties["RMQD_REASON"]) == ("dead", 0, "never wanted")
    assert "RMQD_EXCEPTION" in letter.properties
    assert handled == {(topic, False): {"acked": 1, "retried": 2, "dead_lettered": 1}, (topic, True): {"acked": 2}}


async def test_a_dead_letter_carries_as_much_of_its_exception_as_fits(
    cluster: RealCluster, topic: str, group: str
) -> None:
    """RocketMQ takes 32,767 bytes of properties, and adds some of its own."""

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
    """Brokers that refuse CONSUMER_SEND_MSG_BACK."""

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
async def test_where_send_back_fails_nothing_reaches_the_dead_letters_early(
    cluster: RealCluster, topic: str, group: str
) -> None:
    """Retries are sent to the retry topic then. Were a lock held under the group's own name meanwhile, the broker would
    dead-letter each of them at once, a Java member's too."""
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
        await asyncio.sleep(1.2)  # for the members to lock what they took without asking
        with Producer(cluster.broker.address, topic, 4) as producer:
            for number in range(8):
                producer.send(key=f"m{number}")
        await eventually(lambda: len(seen.keys) == 24, "each message was tried three times")
        assert dead_letter_count(cluster, group) == 0
    assert sorted(attempt.reconsume_times for attempt in seen.attempts) == [0] * 8 + [1] * 8 + [2] * 8
    assert [attempt.delay_level for attempt in seen.of("m0")] == [None, "3", "4"]
    assert {attempt.topic for attempt in seen.attempts} == {topic}
