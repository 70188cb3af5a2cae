"""A stream on a real RocketMQ that changes: queues and a broker are added, the broker is removed, messages expire.

The reader is called as Spark calls it, without a session.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage, select_by_id
from rmqd.errors import DataLossError
from tests.rocketmq import rpc
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.errors import NotEmbeddedError
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.settings import CLUSTER_NAME
from tests.rocketmq.spec import ClusterSpec
from tests.spark.needed import need
from tests.waiting import wait_until

need("pyspark", "pyarrow")

from tests.spark.micro_batches import Checkpoint, Query  # noqa: E402

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow]

FIRST, SECOND = "broker-a", "broker-b"
SETTINGS = {"mappedFileSizeCommitLog": str(1 << 20)}  # a file of the log has some ten messages of this size:
EXPIRING_BYTES = 100_000
GONE = "spark.queue_gone"


class Cluster:
    """Two brokers. The second one starts and stops during a test."""

    def __init__(self, cluster: RealCluster, topic: str, group: str) -> None:
        self.real = cluster
        self.topic = topic
        self._group = group

    def create_topic(self, broker: str, queues: int, permission: int = 6) -> None:
        """Create or change the topic on one broker."""
        fields: dict[str, object] = {
            "topic": self.topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues,
            "perm": permission, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip
        rpc.call(self.real.node(broker).address, rpc.UPDATE_AND_CREATE_TOPIC, fields)
        wait_until(lambda: self.route().get(broker) == (queues, permission), f"{broker}'s queues are in the route")

    def route(self) -> dict[str, tuple[int, int]]:
        """Readable queues and permission of the topic by broker, as the name server has them."""
        answer = rpc.call(self.real.nameserver, rpc.GET_ROUTE_INFO_BY_TOPIC, {"topic": self.topic}, accepted=(0, 17))
        queues = rpc.loose_json(answer.body)["queueDatas"] if answer.code == 0 else []
        return {queue["brokerName"]: (queue["readQueueNums"], queue["perm"]) for queue in queues}

    def send(self, broker: str, queue_id: int, *bodies: str) -> None:
        """Store messages in a queue, one after another."""

        async def sending() -> None:
            client = ClientInstance(ClientOptions(nameservers=(self.real.nameserver,)))
            try:
                for body in bodies:
                    await client.producer.send(
                        OutgoingMessage(self.topic, body.encode()), selector=select_by_id(queue_id, broker)
                    )
            finally:
                await client.close()

        asyncio.run(sending())

    def take_away(self, broker: str) -> None:
        """Kill a broker and unregister it at the name server, which would otherwise take two minutes."""
        self.real.kill(broker)
        spec = self.real.node(broker).spec
        fields: dict[str, object] = {
            "brokerName": broker, "brokerAddr": spec.address, "clusterName": CLUSTER_NAME, "brokerId": 0,
        }  # fmt: skip
        rpc.call(self.real.nameserver, rpc.UNREGISTER_BROKER, fields)
        wait_until(lambda: broker not in self.route(), f"{broker} is forgotten")

    def expire(self, broker: str) -> None:
        """Delete the oldest messages of a broker, which itself does it at the earliest a minute after its start."""
        self.real.kill(broker)
        log = self.real.node(broker).directory / "store" / "commitlog"
        for file in sorted(log.iterdir())[:2]:
            file.unlink()
        self.real.up([self.real.node(broker)])

    def offset(self, broker: str, code: int) -> int:
        """The first or the next offset of the broker's queue 0."""
        fields: dict[str, object] = {"topic": self.topic, "queueId": 0}
        return int(rpc.call(self.real.node(broker).address, code, fields).fields["offset"])

    def query(self, checkpoint: Checkpoint, **options: str) -> Query:
        """A stream from the first messages on, which refreshes everything at each poll."""
        return Query(
            checkpoint,
            {
                "nameserver": self.real.nameserver, "subscribe": self.topic, "groupId": self._group,
                "fetchOffset.intervalMs": "0", "routeRefreshMs": "0", "unavailableToleranceMs": "20000", **options,
            },
        )  # fmt: skip


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A cluster in which only the first broker runs."""
    try:
        spec = ClusterSpec(brokers=2, broker_names=(FIRST, SECOND), heap="384m", settings=SETTINGS).with_nodes()
    except NotEmbeddedError as error:
        pytest.skip(str(error))
    with RealCluster(tmp_path_factory.mktemp("brokers") / "cluster", spec) as real:
        real.up([real.namesrv, real.node(FIRST)])
        yield real


@pytest.fixture
def cluster(real: RealCluster, topic_name: str, group: str) -> Cluster:
    """The cluster, with names for one test."""
    return Cluster(real, topic_name, group)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """The name of a topic that does not exist yet."""
    return fresh_name(request.node.name, "topic")


def test_a_stream_while_its_cluster_changes(cluster: Cluster) -> None:
    """Each message is read once, and the queues of a removed broker are reported."""
    cluster.create_topic(FIRST, 1)
    cluster.send(FIRST, 0, "a0:0")
    checkpoint = Checkpoint()
    query = cluster.query(checkpoint)
    assert query.run_until_idle() == [["a0:0"]]

    # queues are added
    cluster.create_topic(FIRST, 3)
    cluster.send(FIRST, 2, "a2:0", "a2:1")
    assert query.run_until_idle()[1:] == [["a2:0", "a2:1"]]

    # a broker is added
    cluster.real.up([cluster.real.node(SECOND)])
    cluster.create_topic(SECOND, 2)
    cluster.send(SECOND, 1, "b1:0", "b1:1")
    cluster.send(FIRST, 0, "a0:1")
    query.run_until_idle()
    assert sorted(itertools.chain(*query.rows[2:])) == ["a0:1", "b1:0", "b1:1"]
    assert json.loads(checkpoint.offsets[-1])["q"] == {
        cluster.topic: {FIRST: {"0": 2, "1": 0, "2": 2}, SECOND: {"0": 0, "1": 2}}
    }

    # it is drained, and removed
    done = len(query.rows)
    cluster.send(SECOND, 0, "b0:0")
    cluster.create_topic(SECOND, 2, permission=4)
    assert query.run_until_idle()[done:] == [["b0:0"]]
    cluster.take_away(SECOND)
    cluster.send(FIRST, 0, "a0:2")
    with capture_logs() as logs:
        assert query.run_until_idle()[done + 1 :] == [["a0:2"]]
    gone = {entry["queue"]: (entry["position"], entry["unread"]) for entry in logs if entry["event"] == GONE}
    assert gone == {f"{cluster.topic}@{SECOND}:0": (1, 0), f"{cluster.topic}@{SECOND}:1": (2, 0)}

    # it returns
    cluster.real.up([cluster.real.node(SECOND)])
    cluster.create_topic(SECOND, 2)
    cluster.send(SECOND, 1, "b1:2")
    wait_until(query.poll, "the broker is seen again")
    assert query.run_until_idle()[done + 2 :] == [["b1:2"]]
    offsets = json.loads(checkpoint.offsets[-1])
    assert (offsets["q"][cluster.topic][SECOND], "gone" in offsets) == ({"0": 1, "1": 3}, False)


def test_a_stream_that_is_behind_the_retention(cluster: Cluster) -> None:
    """The error has missing and available offsets. With `failOnDataLoss=false` the query continues after the gap."""
    cluster.create_topic(FIRST, 1)
    cluster.send(FIRST, 0, "first")
    checkpoint = Checkpoint()
    assert cluster.query(checkpoint).run_until_idle() == [["first"]]
    cluster.send(FIRST, 0, *(f"{number}".ljust(EXPIRING_BYTES, ".") for number in range(1, 30)))
    cluster.expire(FIRST)
    low, end = cluster.offset(FIRST, rpc.GET_MIN_OFFSET), cluster.offset(FIRST, rpc.GET_MAX_OFFSET)
    assert 1 < low < end == 30
    with pytest.raises(DataLossError) as raised:
        cluster.query(checkpoint).poll()
    assert str(raised.value) == (
        f"data loss in {cluster.topic}@{FIRST}:0: offsets 1 to {low - 1} are missing: the broker has {low} to 29"
    )
    with capture_logs() as logs:
        (rows,) = cluster.query(checkpoint, failOnDataLoss="false").run_until_idle()
    assert [row.rstrip(".") for row in rows] == [str(number) for number in range(low, 30)]
    assert [entry["skipped"] for entry in logs if entry["event"] == "spark.data_lost"] == [low - 1]
