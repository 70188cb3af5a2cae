"""A real master with a slave that is behind it, and may be read: what only the master has is waited for.

Without a session: the reader is called as Spark calls it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from tests.rocketmq import RealCluster, rpc
from tests.rocketmq.errors import ClusterError
from tests.rocketmq.producer import Producer
from tests.spark.needed import need
from tests.waiting import wait_until

need("pyspark", "pyarrow")

from tests.spark.micro_batches import Checkpoint, Query  # noqa: E402

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow]

GET_ALL_TOPIC_CONFIG = 21
COPIED, LATER = 3, 8
WITHIN_SECONDS = 90.0  # a slave learns of a topic within 10 s, a broker needs some seconds to start


def send(cluster: RealCluster, topic: str, count: int) -> None:
    with Producer(cluster.broker.address, topic, 1) as producer:
        for number in range(count):
            producer.send(key=f"m{number}")


def slave_has(cluster: RealCluster, topic: str, count: int) -> bool:
    address = cluster.node("slave").address
    try:
        if f'"{topic}"'.encode() not in rpc.call(address, GET_ALL_TOPIC_CONFIG).body:
            return False
        fields: dict[str, object] = {"topic": topic, "queueId": 0}
        return int(rpc.call(address, rpc.GET_MAX_OFFSET, fields).fields["offset"]) >= count
    except ClusterError:
        return False


@pytest.mark.parametrize("loss_fails", ["true", "false"])
def test_a_batch_waits_for_the_master(
    rocketmq_replicated: RealCluster, group: str, loss_fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is planned with the master there, and read when only the slave is."""
    cluster = rocketmq_replicated
    topic = cluster.create_topic(f"{group}_topic", queues=1)
    send(cluster, topic, COPIED)
    wait_until(lambda: slave_has(cluster, topic, COPIED), "the slave has the first ones", WITHIN_SECONDS)
    cluster.kill("slave")
    send(cluster, topic, LATER)
    query = Query(
        Checkpoint(),
        {
            "nameserver": cluster.nameserver, "subscribe": topic, "startingOffsets": "earliest",
            "fetchOffset.intervalMs": "0", "routeRefreshMs": "0", "failOnDataLoss": loss_fails,
        },
    )  # fmt: skip
    plan: Callable[..., object] = query.reader.partitions

    def planned(*offsets: object) -> object:
        """As Spark: the ranges are there, and the broker goes before a task reads them."""
        partitions = plan(*offsets)
        cluster.kill("broker")
        cluster.restart("slave")
        return partitions

    monkeypatch.setattr(query.reader, "partitions", planned)
    with capture_logs() as logs:
        reading = threading.Thread(target=query.poll, daemon=True)
        reading.start()
        wait_until(
            lambda: any("does not have offset" in str(entry.get("error")) for entry in logs),
            "the slave has said that it does not have them",
            WITHIN_SECONDS,
        )
        cluster.restart("broker")
        reading.join(WITHIN_SECONDS)
    assert [len(rows) for rows in query.rows] == [COPIED + LATER]
    assert [entry for entry in logs if entry["event"] == "spark.data_lost"] == []
