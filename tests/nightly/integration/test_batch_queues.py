"""Topics with queue.type=BatchCQ on a real RocketMQ: each member of a batch is a message, for rmqd as for Java."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.handler_api.batch import Batch, DeadLetter
from tests.consumer.members import member
from tests.integration.consuming import dead_letters
from tests.rocketmq import RealCluster, ledger, offsets, release
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually, wait_until

pytestmark = pytest.mark.skipif(release.is_4(), reason="RocketMQ 4.9 has no such topics")

BATCHES, SIZE = 8, 5
KEYS = [f"k{number}" for number in range(BATCHES * SIZE)]


def batch_topic(cluster: RealCluster, test: str) -> str:
    """A topic with one BatchCQ queue, and batches of five messages with the tags a and b in turn."""
    topic = fresh_name(test, "topic")
    cluster.create_topic(topic, 1, attributes="+queue.type=BatchCQ")
    with Producer(cluster.broker.address, topic, 1) as producer:
        for at in range(0, len(KEYS), SIZE):
            keys = KEYS[at : at + SIZE]
            tags = ["ab"[number % 2] for number in range(at, at + SIZE)]
            producer.send_batch(keys, tags=tags, batch_tag="a")
    return topic


async def test_messages_of_a_batch_are_handled_and_committed_one_by_one(
    rocketmq: RealCluster, request: pytest.FixtureRequest, group: str, tmp_path: Path
) -> None:
    """A group whose offset is inside a batch skips the batch's earlier messages. Java reads the same topic."""
    topic, seen = batch_topic(rocketmq, request.node.name), Seen()
    async with member(
        rocketmq.nameserver, seen, group=group, consume_from_where="first_offset", subscriptions=[topic], concurrency=1
    ):
        await eventually(lambda: len(seen.keys) >= len(KEYS), "all are handled")
    assert seen.keys == KEYS
    assert [attempt.offset for attempt in seen.attempts] == list(range(len(KEYS)))
    assert offsets.lag(rocketmq, group, topic) == 0

    middle, late = SIZE + 2, Seen()
    offsets.commit(rocketmq, group, topic, next(iter(offsets.queues(rocketmq, topic))), middle)
    async with member(
        rocketmq.nameserver, late, group=group, consume_from_where="first_offset", subscriptions=[topic], concurrency=1
    ):
        await eventually(lambda: len(late.keys) >= len(KEYS) - middle, "the rest is handled")
    assert late.keys == KEYS[middle:]

    theirs = tmp_path / "java"
    with start_consumer(PeerOptions(rocketmq.nameserver, topic, theirs), fresh_name("java", "group")):
        wait_until(lambda: len(ledger.read(theirs)) >= 2 * len(KEYS), "Java has handled them")
    assert {entry.key for entry in ledger.read(theirs)} == set(KEYS)


async def test_retries_and_dead_letters_are_single_messages_of_a_batch(
    rocketmq_short_delays: RealCluster, request: pytest.FixtureRequest, group: str
) -> None:
    """The batch's other messages are handled once."""
    cluster = rocketmq_short_delays
    topic, seen = batch_topic(cluster, request.node.name), Seen()

    async def handle(batch: Batch) -> None:
        await seen(batch)
        if batch[0].keys == "k3" and not batch[0].reconsume_times:
            raise RuntimeError("not now")
        if batch[0].keys == "k6":
            raise DeadLetter("never")

    async with member(
        cluster.nameserver, handle, group=group, consume_from_where="first_offset", subscriptions=[topic]
    ):
        await eventually(lambda: len(seen.keys) > len(KEYS), "the retry is handled")
        [dead] = await dead_letters(cluster, group, 1)
    assert sorted(seen.keys) == sorted([*KEYS, "k3"])
    again = seen.of("k3")[1]
    assert (again.topic, again.body, again.reconsume_times) == (topic, b"x", 1)
    assert (dead.key, dead.body, dead.properties["RETRY_TOPIC"]) == ("k6", b"x", topic)


async def test_tags_select_messages(rocketmq: RealCluster, request: pytest.FixtureRequest, group: str) -> None:
    """The broker filters whole batches by the batch's tag, and rmqd filters their messages."""
    topic, seen = batch_topic(rocketmq, request.node.name), Seen()
    async with member(
        rocketmq.nameserver, seen, group=group, consume_from_where="first_offset", subscriptions={topic: "a"}
    ):
        await eventually(lambda: sum(offsets.committed(rocketmq, group, topic).values()) == len(KEYS), "all committed")
    assert sorted(seen.keys) == sorted(KEYS[::2])
