"""The leading broker of each logical queue of a static topic, found as in Java."""

from __future__ import annotations

import pytest

from rmqd.errors import ProtocolError
from rmqd.wire.bodies.route_data import (
    NO_BROKER,
    BrokerData,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
    queue_leaders,
)

NAME = "__syslo__global__"


def info(broker: str, epoch: int, total: int, *queue_ids: int, scope: str = "__global__") -> TopicQueueMappingInfo:
    return TopicQueueMappingInfo(broker, total, epoch, scope, dict.fromkeys(queue_ids, 0))


def test_the_broker_with_the_latest_epoch_leads_a_queue() -> None:
    """Also if the previous broker still claims the queue."""
    found = queue_leaders([info("a", 1, 2, 0, 1), info("b", 2, 3, 1, 2)])
    assert found == {(NAME, 0): "a", (NAME, 1): "b", (NAME, 2): "b"}
    assert queue_leaders([]) == {}


def test_a_queue_that_no_broker_claims_is_a_queue() -> None:
    """It counts when queues are divided among members."""
    assert queue_leaders([info("a", 1, 3, 0, 2)]) == {(NAME, 0): "a", (NAME, 1): NO_BROKER, (NAME, 2): "a"}


def test_queues_of_different_scopes_are_different() -> None:
    assert queue_leaders([info("a", 1, 1, 0), info("b", 1, 1, 0, scope="zone")]) == {
        (NAME, 0): "a",
        ("__syslo__zone", 0): "b",
    }


def test_mappings_are_part_of_a_route() -> None:
    """Name servers write queue ids as strings or as numbers."""
    route = TopicRouteData(
        (QueueData("a", 2, 2, 6),),
        (BrokerData("c", "a", {0: "h:1"}),),
        mappings=(info("a", 1_700_000_000_000, 2, 0, 1),),
    )
    for strict in (True, False):
        assert TopicRouteData.from_json(route.to_json(strict=strict)) == route
    told = b"""{"brokerDatas":[],"filterServerTable":{},"queueDatas":[],"topicQueueMappingByBroker":{"a":
        {"bname":"a","currIdMap":{0:3,"2":1},"dirty":false,"epoch":7,"scope":"__global__","topic":"T","totalQueues":4}}}"""
    [found] = TopicRouteData.from_json(told).mappings
    assert found == TopicQueueMappingInfo("a", 4, 7, "__global__", {0: 3, 2: 1}, "T")
    with pytest.raises(ProtocolError, match="totalQueues"):
        TopicRouteData.from_json(told.replace(b'"totalQueues":4', b'"totalQueues":2000000'))
