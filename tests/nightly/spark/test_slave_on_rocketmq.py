"""A real master with a slave that is behind it and readable: messages that only the master has are waited for.

The readers are called as Spark calls them, without a session.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd import Batch
from tests.rocketmq import RealCluster, rpc
from tests.rocketmq.errors import ClusterError
from tests.rocketmq.producer import Producer
from tests.spark.needed import need
from tests.waiting import wait_until

need("pyspark", "pyarrow")

from tests.spark import handler_batches, micro_batches  # noqa: E402
from tests.spark.handler_batches import GroupQuery  # noqa: E402
from tests.spark.micro_batches import Query  # noqa: E402

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow]

GET_ALL_TOPIC_CONFIG = 21
COPIED, ALL = 3, 11
WITHIN_SECONDS = 90.0  # a broker needs some seconds to start


def send(cluster: RealCluster, topic: str, first: int, end: int) -> None:
    with Producer(cluster.broker.address, topic, 1) as producer:
        for number in range(first, end):
            producer.send(f"m{number}".encode())


def slave_has(cluster: RealCluster, topic: str, count: int) -> bool:
    address = cluster.node("slave").address
    try:
        if f'"{topic}"'.encode() not in rpc.call(address, GET_ALL_TOPIC_CONFIG).body:
            return False
        fields: dict[str, object] = {"topic": topic, "queueId": 0}
        return int(rpc.call(address, rpc.GET_MAX_OFFSET, fields).fields["offset"]) >= count
    except ClusterError:
        return False


HANDLED: list[str] = []


async def handle(batch: Batch) -> None:
    """Acknowledges everything."""
    HANDLED.extend(message.body.decode() for message in batch)


@dataclass(frozen=True)
class Reading:
    """A query on a separate topic, and the bodies that it has read."""

    topic: str
    query: Query | GroupQuery
    read: Callable[[], list[str]]

    def take_all(self) -> None:
        """Run batches until everything is read. The first batch of a group is small."""
        for _ in range(ALL):
            if len(self.read()) < ALL:
                self.query.poll()


def source(cluster: RealCluster, topic: str, *, loss_fails: bool) -> Reading:
    """`spark.readStream`."""
    options = {
        "nameserver": cluster.nameserver, "subscribe": topic, "startingOffsets": "earliest",
        "failOnDataLoss": str(loss_fails).lower(),
    }  # fmt: skip
    query = Query(micro_batches.Checkpoint(), options)

    def read() -> list[str]:
        return [body for rows in query.rows for body in rows]

    return Reading(topic, query, read)


def engine_spark(cluster: RealCluster, topic: str) -> Reading:
    """A group with `engine: spark`, and with the default of each key about data loss."""
    HANDLED.clear()
    order = handler_batches.order_of(cluster.nameserver, handle, subscriptions={topic: "*"})
    return Reading(topic, GroupQuery(order), lambda: HANDLED)


def test_a_batch_waits_for_the_master(
    rocketmq_replicated: RealCluster, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned while the master is up, and read when only the slave is. Nothing is skipped, and nothing fails."""
    cluster = rocketmq_replicated
    topics = [cluster.create_topic(f"{group}_topic{number}", queues=1) for number in range(3)]
    for topic in topics:
        send(cluster, topic, 0, COPIED)
    for topic in topics:
        wait_until(partial(slave_has, cluster, topic, COPIED), "the slave has the first ones", WITHIN_SECONDS)
    cluster.kill("slave")
    for topic in topics:
        send(cluster, topic, COPIED, ALL)
    readings = [
        source(cluster, topics[0], loss_fails=True),
        source(cluster, topics[1], loss_fails=False),
        engine_spark(cluster, topics[2]),
    ]

    def lose_master() -> None:
        cluster.kill("broker")
        cluster.restart("slave")

    all_planned = threading.Barrier(len(readings), lose_master)
    for reading in readings:
        await_others(reading.query, all_planned, monkeypatch)
    with capture_logs() as logs:
        threads = [threading.Thread(target=reading.take_all, daemon=True) for reading in readings]
        for thread in threads:
            thread.start()
        wait_until(lambda: set(topics) <= not_on_slave(logs), "the slave does not have the later ones", WITHIN_SECONDS)
        cluster.restart("broker")
        for thread in threads:
            thread.join(WITHIN_SECONDS)
    wanted = {f"m{number}": 1 for number in range(ALL)}
    assert [Counter(reading.read()) for reading in readings] == [wanted] * len(readings)
    assert [entry for entry in logs if entry["event"] == "spark.data_lost"] == []


def await_others(query: Query | GroupQuery, all_planned: threading.Barrier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the query wait, after it has planned its first batch, until all others have planned theirs."""
    plan: Callable[..., object] = query.reader.partitions

    def planned(*offsets: object) -> object:
        partitions = plan(*offsets)
        monkeypatch.setattr(query.reader, "partitions", plan)
        all_planned.wait(WITHIN_SECONDS)
        return partitions

    monkeypatch.setattr(query.reader, "partitions", planned)


def not_on_slave(logs: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the topics with an offset that a slave has reported as missing."""
    return {
        str(entry["queue"]).partition("@")[0] for entry in logs if "does not have offset" in str(entry.get("error"))
    }
