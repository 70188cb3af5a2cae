"""All brokers that a name server knows, lists of topics, and tables of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rmqd.wire.bodies.base import Body, BrokerName, ClusterName
from rmqd.wire.bodies.route import PERM_READ, BrokerData, QueueData, TopicRouteData
from rmqd.wire.fields import Named


@dataclass(frozen=True, slots=True)
class ClusterInfo(Body, bare_keys=True):
    """The reply to GET_BROKER_CLUSTER_INFO (106): brokers by name, and broker names by cluster.

    Keys are bare numbers for clients of every version.
    """

    broker_addr_table: dict[BrokerName, BrokerData]
    cluster_addr_table: dict[ClusterName, tuple[str, ...]]


def light_queue_route(info: ClusterInfo) -> TopicRouteData:
    """Where a light message queue may have messages: in queue 0 of every broker. Nobody sends to it by its name."""
    brokers = tuple(broker for _, broker in sorted(info.broker_addr_table.items()))
    return TopicRouteData(tuple(QueueData(broker.broker_name, 1, 0, PERM_READ) for broker in brokers), brokers)


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Topic names, and in some lists the address of the broker that they are from.

    The reply to GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), GET_TOPICS_BY_CLUSTER (224), QUERY_TOPICS_BY_CONSUMER (343)
    and GET_SYSTEM_TOPIC_LIST_FROM_NS (304) or _FROM_BROKER (305).
    """

    topics: Annotated[tuple[str, ...], Named("topicList")]
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class KVTable(Body):
    """Texts by name.

    The reply to GET_BROKER_RUNTIME_INFO (28), what a broker says about itself, and to GET_KVLIST_BY_NAMESPACE (219),
    a namespace of the name server's settings.
    """

    table: dict[str, str]
