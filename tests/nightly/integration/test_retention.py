"""Retention on a real broker deletes messages that a member has cached, and the member handles them anyway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd.handler_api.batch import Batch
from tests.conformance import behaviour
from tests.consumer.members import member
from tests.rocketmq import ClusterSpec, RealCluster, offsets, rpc
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow, pytest.mark.timeout(300)]

DELETE_EXPIRED_COMMITLOG = 329
GET_MIN_OFFSET = 31
COUNT, PULLED = 200, 64
WITHIN_SECONDS = 120.0  # a broker deletes nothing in its first minute
# files of about thirty messages, which are deleted when an administrator requests it
FORGETFUL = {
    "mappedFileSizeCommitLog": str(64 << 10),
    "fileReservedTime": "0",
    "cleanResourceInterval": "500",
}


def min_offset(cluster: RealCluster, topic: str) -> int:
    """The offset of the queue's first kept message."""
    fields: dict[str, object] = {"topic": topic, "queueId": 0}
    return int(rpc.call(cluster.broker.address, GET_MIN_OFFSET, fields).fields["offset"])


def store(cluster: RealCluster, topic: str, low: int, high: int) -> None:
    """Store messages."""
    with Producer(cluster.broker.address, topic, 1) as producer:
        for number in range(low, high):
            producer.send(b"x" * 2000, key=f"m{number}")


@behaviour(
    "queues",
    "Retention deletes messages that a member has cached and not handled",
    java="they are discarded, and committed as consumed",
    rmqd=(
        "they are handled, and failed messages are sent to the retry topic with their bodies; only the "
        "next pull begins at the first kept message"
    ),
    checked="a member held back by flow control, and deleteExpiredCommitLog",
    embedded="not run: it has no commit log to delete from",
    long=True,
)
async def test_cached_messages_survive_the_brokers_retention() -> None:
    """Each pulled message is handled, and retried if it fails, although the broker has deleted it."""
    seen, release, topic, group = Seen(), asyncio.Event(), "retained", "g_retained"

    async def fail_once(batch: Batch) -> None:
        await release.wait()
        await seen(batch)
        if batch[0].reconsume_times == 0 and batch[0].keys in ("m3", "m40"):
            raise RuntimeError("not now")

    with RealCluster.start(ClusterSpec(settings=FORGETFUL)) as cluster:
        cluster.create_topic(topic, queues=1)
        await asyncio.to_thread(store, cluster, topic, 0, COUNT)
        options: dict[str, Any] = {"pull_threshold_for_queue": PULLED - 10, "delay_level_when_next_consume": 1}
        async with member(
            cluster.nameserver, fail_once, group=group, subscriptions=[topic], consume_from_where="first_offset",
            persist_consumer_offset_interval_seconds=0.2, **options,
        ) as m:  # fmt: skip
            await eventually(lambda: (q := m.queue()) and q.cached == PULLED, "messages are cached", WITHIN_SECONDS)

            def is_passed() -> bool:
                rpc.call(cluster.broker.address, DELETE_EXPIRED_COMMITLOG)
                return min_offset(cluster, topic) > PULLED + 20

            await eventually(is_passed, "retention has passed what is cached", WITHIN_SECONDS)
            await eventually(
                lambda: (q := m.queue()) and (q.position or 0) > PULLED, "the member hears of it", WITHIN_SECONDS
            )
            gone = min_offset(cluster, topic)
            assert set(offsets.committed(cluster, group, topic).values()) <= {0}
            release.set()
            await eventually(lambda: offsets.lag(cluster, group, topic) == 0, "all is committed", WITHIN_SECONDS)
            await eventually(lambda: len(seen.of("m3")) == len(seen.of("m40")) == 2, "two are retried", WITHIN_SECONDS)
            store(cluster, topic, COUNT, COUNT + 1)
            await eventually(lambda: seen.of(f"m{COUNT}"), "what comes then is handled", WITHIN_SECONDS)
    handled = {int(key[1:]) for key in seen.keys}
    assert handled >= set(range(PULLED)) | set(range(gone, COUNT + 1))
    assert len(seen.keys) == len(handled) + 2
