"""Queues that are added and removed while a group consumes the topic, on a real broker."""

from __future__ import annotations

from collections import Counter

from tests.conformance import behaviour
from tests.consumer.members import member
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

PERSIST_SECONDS = 0.2
POLL_SECONDS = 0.5


def send(cluster: RealCluster, topic: str, queues: int, prefix: str, count: int) -> set[str]:
    """Store messages in the queues in turn. Returns their keys."""
    keys = {f"{prefix}{number}" for number in range(count)}
    with Producer(cluster.broker.address, topic, queues) as producer:
        for key in sorted(keys):
            producer.send(key=key)
    return keys


async def all_handled(seen: Seen, keys: set[str]) -> None:
    """Wait until these keys are handled, and check that each was handled once and no other key was."""
    await eventually(lambda: keys <= set(seen.keys), f"{len(keys)} messages are handled; it is {len(seen.keys)}")
    assert Counter(seen.keys) == Counter(keys)


@behaviour(
    "queues",
    "Added queues are consumed, and removed queues are released",
    java="with the next refresh of the route, every 30 s",
    rmqd=(
        "the same, from their first message; no message is handled twice, and messages of removed queues are committed"
    ),
    checked="updateTopic on a running group",
)
async def test_added_queues_are_consumed_and_removed_queues_are_released(rocketmq: RealCluster, group: str) -> None:
    """Like `mqadmin updateTopic -r -w`. No message is handled twice."""
    topic, seen = rocketmq.create_topic(fresh_name("grown", "topic"), 2), Seen()
    async with member(
        rocketmq.nameserver,
        seen,
        group=group,
        subscriptions=[topic],
        poll_seconds=POLL_SECONDS,
        persist_consumer_offset_interval_seconds=PERSIST_SECONDS,
    ) as m:
        keys = send(rocketmq, topic, 2, "two", 20)
        await all_handled(seen, keys)
        rocketmq.create_topic(topic, 6)
        keys |= send(rocketmq, topic, 6, "six", 60)
        await all_handled(seen, keys)
        assert len(m.owned()) == 6
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
        rocketmq.create_topic(topic, 3)
        await eventually(lambda: len(m.owned()) == 3, "the removed queues are released")
        keys |= send(rocketmq, topic, 3, "three", 30)
        await all_handled(seen, keys)
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
