"""A real master with a slave: rmqd reads from the slave only while the master is dead or silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rmqd.handler_api.batch import Batch
from tests.consumer.members import Member, member
from tests.rocketmq import RealCluster, offsets, rpc
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow]

GET_ALL_TOPIC_CONFIG = 21
FIRST, BACKLOG, LAST = 20, 40, 5
WITHIN_SECONDS = 90.0  # a broker needs some seconds to start


def send(cluster: RealCluster, topic: str, start: int, count: int) -> None:
    """Store messages at the master."""
    with Producer(cluster.broker.address, topic, 1) as producer:
        for number in range(start, start + count):
            producer.send(key=f"m{number}")


def slave_has(cluster: RealCluster, topic: str, count: int) -> bool:
    """Whether the slave has the topic and at least `count` of its messages."""
    address = cluster.node("slave").address
    if f'"{topic}"'.encode() not in rpc.call(address, GET_ALL_TOPIC_CONFIG).body:
        return False
    return int(rpc.call(address, rpc.GET_MAX_OFFSET, {"topic": topic, "queueId": 0}).fields["offset"]) >= count


async def before_the_fault(cluster: RealCluster, topic: str, group: str, m: Member, seen: Seen) -> None:
    """Handle and commit the first messages, then store more on both replicas while the group is paused."""
    await eventually(lambda: len(seen.keys) == FIRST, "the first messages are handled", WITHIN_SECONDS)
    await eventually(lambda: committed(cluster, group, topic) == FIRST, "and committed", WITHIN_SECONDS)
    m.consumer.pause()
    await asyncio.to_thread(send, cluster, topic, FIRST, BACKLOG)
    await eventually(lambda: slave_has(cluster, topic, FIRST + BACKLOG), "the slave has the rest", WITHIN_SECONDS)


async def after_the_fault(cluster: RealCluster, topic: str, group: str, m: Member, seen: Seen) -> None:
    """Check that the master has the offsets and is read again, and that no message was repeated."""
    everything = FIRST + BACKLOG
    await eventually(
        lambda: committed(cluster, group, topic) == everything, "the master has the offset", WITHIN_SECONDS
    )
    await asyncio.to_thread(send, cluster, topic, everything, LAST)
    await eventually(lambda: len(set(seen.keys)) == everything + LAST, "what comes then is handled", WITHIN_SECONDS)
    await eventually(lambda: is_read_from(m, cluster, "broker"), "from the master", WITHIN_SECONDS)
    assert sorted(seen.keys) == sorted({f"m{number}" for number in range(everything + LAST)})
    assert m.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}


def committed(cluster: RealCluster, group: str, topic: str) -> int | None:
    """The committed offset at the master."""
    return next(iter(offsets.committed(cluster, group, topic).values()), None)


def is_read_from(m: Member, cluster: RealCluster, node: str) -> bool:
    """Whether the queue's last pull went to this node."""
    queue = m.queue()
    address = cluster.node(node).address
    return queue is not None and (queue.pulled_from, queue.at_slave) == (address, node == "slave")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the watchdog's check interval."""
    monkeypatch.setattr("rmqd.consumer.health.watchdog.CHECK_INTERVAL_SECONDS", 0.2)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("fault", ["killed", "silent"])
async def test_a_slave_serves_pulls_while_its_master_does_not_respond(
    rocketmq_replicated: RealCluster, group: str, fault: str
) -> None:
    cluster, seen = rocketmq_replicated, Seen()
    topic = cluster.create_topic(f"{group}_topic", queues=1)
    send(cluster, topic, 0, FIRST)
    begin: Callable[[str], None] = cluster.kill if fault == "killed" else cluster.pause
    end: Callable[[str], object] = cluster.restart if fault == "killed" else cluster.resume

    async def handle(batch: Batch) -> None:
        await seen(batch)

    async with member(
        cluster.nameserver,
        handle,
        group=group,
        subscriptions=[topic],
        heartbeat_seconds=1.0,
        poll_seconds=1.0,
        persist_consumer_offset_interval_seconds=0.2,
        consume_from_where="first_offset",
    ) as m:
        await before_the_fault(cluster, topic, group, m, seen)
        await asyncio.to_thread(begin, "broker")
        await eventually(lambda: not all(m.client.heartbeat.brokers_up.values()), "it is seen", WITHIN_SECONDS)
        m.consumer.resume()
        await eventually(lambda: len(set(seen.keys)) == FIRST + BACKLOG, "the slave serves the rest", WITHIN_SECONDS)
        assert is_read_from(m, cluster, "slave")
        await asyncio.to_thread(end, "broker")
        await after_the_fault(cluster, topic, group, m, seen)
