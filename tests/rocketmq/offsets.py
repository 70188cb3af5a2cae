"""The state of a group on the brokers: offsets, members, and the owners of queues."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass

from tests.rocketmq import rpc
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.errors import ClusterError

GET_CONSUMER_RUNNING_INFO = 307


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of the topic in question."""

    broker: str
    queue_id: int


def queues(cluster: RealCluster, topic: str) -> dict[Queue, str]:
    """Every queue of a topic, with the address of its master."""
    masters = {node.spec.broker_name: node.address for node in cluster.masters}
    body = rpc.call(cluster.nameserver, rpc.GET_ROUTE_INFO_BY_TOPIC, {"topic": topic}, credentials=cluster.credentials)
    return {
        Queue(entry["brokerName"], number): masters[entry["brokerName"]]
        for entry in rpc.loose_json(body.body)["queueDatas"]
        for number in range(entry["readQueueNums"])
    }


def committed(cluster: RealCluster, group: str, topic: str) -> dict[Queue, int]:
    """The group's committed offsets; queues without one are left out."""
    found = {}
    for queue, address in queues(cluster, topic).items():
        fields: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": queue.queue_id}
        answer = rpc.call(
            address,
            rpc.QUERY_CONSUMER_OFFSET,
            fields | {"setZeroIfNotFound": "false"},
            credentials=cluster.credentials,
            accepted=(rpc.SUCCESS, rpc.QUERY_NOT_FOUND),
        )
        if answer.code == rpc.SUCCESS:
            found[queue] = int(answer.fields["offset"])
    return found


def commit(cluster: RealCluster, group: str, topic: str, queue: Queue, offset: int) -> None:
    """Set a group's offset, regardless of its members."""
    fields: dict[str, object] = {"consumerGroup": group, "topic": topic, "queueId": queue.queue_id}
    rpc.call(
        queues(cluster, topic)[queue],
        rpc.UPDATE_CONSUMER_OFFSET,
        fields | {"commitOffset": offset},
        credentials=cluster.credentials,
    )


def stored(cluster: RealCluster, topic: str) -> dict[Queue, int]:
    """The offset that each queue's next message will get."""
    return {
        queue: int(
            rpc.call(
                address,
                rpc.GET_MAX_OFFSET,
                {"topic": topic, "queueId": queue.queue_id},
                credentials=cluster.credentials,
            ).fields["offset"]
        )
        for queue, address in queues(cluster, topic).items()
    }


def lag(cluster: RealCluster, group: str, topic: str) -> int:
    """Messages stored and not yet committed by the group."""
    done = committed(cluster, group, topic)
    return sum(offset - done.get(queue, 0) for queue, offset in stored(cluster, topic).items())


def members(cluster: RealCluster, group: str) -> list[str]:
    """The client ids in the first master's consumer list; empty if it does not know the group."""
    with contextlib.suppress(ClusterError):
        answer = rpc.call(
            cluster.broker.address,
            rpc.GET_CONSUMER_LIST_BY_GROUP,
            {"consumerGroup": group},
            credentials=cluster.credentials,
        )
        return sorted(rpc.loose_json(answer.body)["consumerIdList"])
    return []


def queues_of(cluster: RealCluster, group: str, topic: str, member: str) -> list[Queue]:
    """The queues of the topic that a member reports as its own, queried through the broker."""
    return [queue for of, queue in all_queues_of(cluster, group, member) if of == topic]


def all_queues_of(cluster: RealCluster, group: str, member: str) -> list[tuple[str, Queue]]:
    """The queues of all topics that a member reports as its own, each with its topic."""
    answer = rpc.call(
        cluster.broker.address,
        GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": group, "clientId": member, "jstackEnable": "false"},
        credentials=cluster.credentials,
        timeout_seconds=12,
    )
    # fastjson writes the table's keys as objects: {{"brokerName":…}:{…},…}
    keys = (json.loads(key) for key in re.findall(r'(\{"[^{}]*\})\s*:', answer.body.decode()))
    return [(key["topic"], Queue(key["brokerName"], key["queueId"])) for key in keys if "topic" in key]
