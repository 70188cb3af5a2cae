"""The retry topic of a stream's group: mqadmin queries the brokers in its route for a group's progress."""

from __future__ import annotations

import asyncio
import re

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.codes import RequestCode
from rmqd.wire.bodies.group_bodies import GetConsumerListByGroupResponseBody
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply, route_of
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.producer import Producer
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.session.spark_access import ClientAccess  # noqa: E402
from rmqd.spark.session.spark_cluster import cluster_of  # noqa: E402
from tests.spark.micro_batches import Checkpoint, Query  # noqa: E402
from tests.spark.stream_options import grouped  # noqa: E402

JOINING = RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT


def test_mqadmin_shows_the_progress_of_a_stream(rocketmq: RealCluster, topic: str, group: str) -> None:
    """The command does not need a member in the group."""
    with Producer(rocketmq.broker.address, topic) as producer:
        for number in range(80):
            producer.send(b"%d" % number)
    query = Query(
        Checkpoint(),
        {
            "nameserver": rocketmq.nameserver, "subscribe": topic, "groupId": group, "startingOffsets": "earliest",
            "commitOffsets": "true", "maxOffsetsPerTrigger": "40",
        },
    )  # fmt: skip
    query.poll()
    query.poll()
    queues = rocketmq.admin("consumerProgress", "-g", group)
    rows = [line.split() for line in queues.splitlines() if line.startswith(topic)]
    assert [row[2:6] for row in rows] == [[str(number), "10", "5", "5"] for number in range(8)]
    query.run_until_idle()
    assert re.search(r"Diff Total: 0$", rocketmq.admin("consumerProgress", "-g", group), re.MULTILINE)
    assert offsets.members(rocketmq, group) == []


def test_a_query_without_commits_creates_no_retry_topic(broker: EmbeddedBroker) -> None:
    """It only reads the messages of a group with this name."""
    broker.fill("orders", 1, 2)
    Query(Checkpoint(), grouped(broker, commitOffsets="false")).run_until_idle()
    assert not broker.has_topic("%RETRY%reports")
    Query(Checkpoint(), grouped(broker)).run_until_idle()
    assert broker.has_topic("%RETRY%reports")


@pytest.mark.parametrize("members", [("10.0.0.1@7",), ()])
async def test_a_group_with_members_is_not_joined(members: tuple[str, ...]) -> None:
    """Its members would rebalance. A group without members is joined, and left at once."""
    async with Peer() as name_server, Peer() as broker:
        route = route_of({"a": {0: broker.address}}, 1)
        name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(body=route.to_json()))
        body = GetConsumerListByGroupResponseBody(members).to_json()
        broker.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, Reply(body=body))
        cluster = cluster_of(ClientAccess(ClientOptions(nameservers=(name_server.address,))))
        queues = [MessageQueue("orders", "a", 0)]
        answers = await asyncio.to_thread(cluster.make_retry_topic, "reports", queues)
        assert list(answers.values) == queues
        changes = [request.code for request in broker.requests if request.code in JOINING]
        assert changes == ([] if members else list(JOINING))
