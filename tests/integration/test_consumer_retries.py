"""Decisions of handlers about messages, on a broker whose delay levels are all one second."""

from __future__ import annotations

import pytest

from rmqd import Batch, Retry
from tests.consumer.members import Member, member
from tests.integration.consuming import dead_letters
from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually


@pytest.fixture
def cluster(rocketmq_short_delays: RealCluster) -> RealCluster:
    """A cluster with delays of one second."""
    return rocketmq_short_delays


@pytest.fixture
def topic(cluster: RealCluster, request: pytest.FixtureRequest) -> str:
    """A fresh topic with 4 queues."""
    return cluster.create_topic(fresh_name(request.node.name, "topic"), 4)


def counts(one: Member) -> dict[tuple[str, bool], dict[str, int]]:
    """Counts of handled messages, by topic and whether they were retries, without zeros."""
    return {
        (topic.topic, topic.is_retry): {result: count for result, count in topic.handled.items() if count}
        for topic in one.consumer.snapshot().topics
    }


async def test_each_message_of_a_batch_has_its_own_decision(cluster: RealCluster, topic: str, group: str) -> None:
    """Acknowledged, retried, or dead-lettered at once. The exception decides about the other messages."""
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
        await eventually(lambda: len(seen.keys) == 6, "two messages are redelivered")
        [letter] = await dead_letters(cluster, group, 1)
        handled = counts(one)
    assert len({attempt.at for attempt in seen.attempts[:4]}) == 1, "they were one batch"
    assert {attempt.key: attempt.delay_level for attempt in seen.attempts[4:]} == {"retry": "1", "rest": "5"}
    assert (letter.key, letter.reconsume_times, letter.properties["RMQD_REASON"]) == ("dead", 0, "never wanted")
    assert "RMQD_EXCEPTION" in letter.properties
    assert handled == {(topic, False): {"acked": 1, "retried": 2, "dead_lettered": 1}, (topic, True): {"acked": 2}}
