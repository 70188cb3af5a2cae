"""Static topics on two real brokers: rmqd reads the logical queues as Java does, also while they are moved."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd.handler import Batch
from tests.consumer.members import member
from tests.integration.consuming import Seen, until
from tests.integration.waiting import wait_until
from tests.rocketmq import ClusterSpec, NotEmbeddedError, RealCluster, ledger, release
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import PeerOptions, start_consumer, start_producer

pytestmark = [
    pytest.mark.rocketmq,
    pytest.mark.slow,
    pytest.mark.skipif(release.is_4(), reason="RocketMQ 4.9 has no such topics"),
]

QUEUES, MESSAGES = 4, 400
LOGICAL = "__syslo__global__"


@pytest.fixture(scope="module")
def two_brokers() -> Iterator[RealCluster]:
    try:
        cluster = RealCluster.start(ClusterSpec(brokers=2, heap="384m"))
    except NotEmbeddedError as error:
        pytest.skip(str(error))
    with cluster:
        yield cluster


def static_topic(cluster: RealCluster, test: str) -> str:
    """A topic of four logical queues on both brokers."""
    topic = fresh_name(test, "topic")
    cluster.admin("updateStaticTopic", "-t", topic, "-qn", str(QUEUES), "-c", "DefaultCluster")
    return topic


def send(cluster: RealCluster, topic: str, folder: Path, first: int, end: int) -> None:
    """By the Java producer, which sends to logical queues."""
    peer = PeerOptions(cluster.nameserver, topic, folder / f"sent-{first}")
    with start_producer(peer, end, first=first) as producer:
        assert producer.wait() == 0


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
async def test_all_logical_queues_are_read(
    two_brokers: RealCluster, request: pytest.FixtureRequest, group: str, tmp_path: Path, mode: str
) -> None:
    topic, seen = static_topic(two_brokers, request.node.name), Seen()
    options: dict[str, Any] = {"group": group, "subscriptions": [topic], "consume_mode": mode}
    async with member(two_brokers.nameserver, seen, poll_seconds=1.0, **options) as m:
        await until(lambda: len(m.owned()) == QUEUES, "it has the logical queues")
        await asyncio.to_thread(send, two_brokers, topic, tmp_path, 0, MESSAGES)
        await until(lambda: len(seen.keys) >= MESSAGES, "all are handled")
        assert {queue.broker for queue in m.consumer.snapshot().queues if queue.topic == topic} >= {LOGICAL}
    assert Counter(seen.keys) == Counter(f"m-{number}" for number in range(MESSAGES))
    async with member(two_brokers.nameserver, seen, **options) as m:  # goes on where the first one committed
        await until(lambda: len(m.owned()) == QUEUES, "the next one has the queues")
        await asyncio.to_thread(send, two_brokers, topic, tmp_path, MESSAGES, MESSAGES + 1)
        await until(lambda: len(seen.keys) > MESSAGES, "what comes then is handled")
    assert len(seen.keys) == MESSAGES + 1


async def test_queues_are_moved_while_they_are_read(
    two_brokers: RealCluster, request: pytest.FixtureRequest, group: str, tmp_path: Path
) -> None:
    """Nothing is lost and nothing comes twice: their offsets go on, though another broker counts from 0."""
    topic, seen = static_topic(two_brokers, request.node.name), Seen()
    async with member(
        two_brokers.nameserver,
        seen,
        group=group,
        subscriptions=[topic],
        consume_from_where="first_offset",
        poll_seconds=1.0,
    ):
        await asyncio.to_thread(send, two_brokers, topic, tmp_path, 0, MESSAGES)
        await until(lambda: len(seen.keys) >= MESSAGES, "all are handled before the move")
        await asyncio.to_thread(two_brokers.admin, "remappingStaticTopic", "-t", topic, "-b", "broker-a")
        await asyncio.to_thread(send, two_brokers, topic, tmp_path, MESSAGES, 2 * MESSAGES)
        await until(lambda: len(seen.keys) >= 2 * MESSAGES, "all are handled after it", 60)
    assert Counter(seen.keys) == Counter(f"m-{number}" for number in range(2 * MESSAGES))
    late = Seen()  # reads what lies on the former broker through the new one
    async with member(
        two_brokers.nameserver,
        late,
        group=fresh_name("late", "group"),
        subscriptions=[topic],
        consume_from_where="first_offset",
    ):
        await until(lambda: len(late.keys) >= 2 * MESSAGES, "a new group has all", 60)
    assert Counter(late.keys) == Counter(seen.keys)
    places = {(attempt.queue, attempt.offset): attempt.key for attempt in seen.attempts}
    assert places == {(attempt.queue, attempt.offset): attempt.key for attempt in late.attempts}


async def test_queues_are_divided_with_a_java_member(
    two_brokers: RealCluster, request: pytest.FixtureRequest, group: str, tmp_path: Path
) -> None:
    """Retries too: what fails is sent to the retry topic, whichever broker has it."""
    topic, seen, theirs = static_topic(two_brokers, request.node.name), Seen(), tmp_path / "java"

    async def fail_first(batch: Batch) -> None:
        await seen(batch)
        if not batch[0].reconsume_times and (batch[0].keys or "").endswith("00"):
            raise RuntimeError("not now")

    async with member(two_brokers.nameserver, fail_first, group=group, subscriptions=[topic]) as m:
        with start_consumer(PeerOptions(two_brokers.nameserver, topic, theirs), group):
            await until(lambda: len(m.owned()) == QUEUES // 2, "each has half of the queues", 60)
            await asyncio.to_thread(send, two_brokers, topic, tmp_path, 0, MESSAGES)

            def keys() -> set[str]:
                return {entry.key for entry in ledger.read(theirs)} | set(seen.keys)

            wait = asyncio.to_thread(wait_until, lambda: len(keys()) >= MESSAGES, "all are handled", 60)
            await wait
            assert len(set(seen.keys)) == MESSAGES // 2
