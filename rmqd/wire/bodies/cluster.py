"""All brokers that a name server knows, lists of topics, and tables of texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rmqd.wire.bodies.base import Body, BrokerName, ClusterName
from rmqd.wire.bodies.route import PERM_READ, BrokerData, QueueData, TopicRouteData
from rmqd.wire.fields import Named


@dataclass(frozen=True, slots=True)
class ClusterInfo(Body, bare_keys=True):
    """The response to GET_BROKER_CLUSTER_INFO (106): brokers by name, and broker names by cluster.

    Keys are bare numbers for clients of all versions.
    """

    broker_addr_table: dict[BrokerName, BrokerData]
    cluster_addr_table: dict[ClusterName, tuple[str, ...]]


def light_queue_route(info: ClusterInfo) -> TopicRouteData:
    """Return a light message queue's route: queue 0 of every broker, read-only because clients send to other topics."""
    brokers = tuple(broker for _, broker in sorted(info.broker_addr_table.items()))
    return TopicRouteData(tuple(QueueData(broker.broker_name, 1, 0, PERM_READ) for broker in brokers), brokers)


@dataclass(frozen=True, slots=True)
class TopicList(Body):
    """Topic names, in some lists with the address of their broker.

    The response to GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), GET_TOPICS_BY_CLUSTER (224), QUERY_TOPICS_BY_CONSUMER
    (343) and GET_SYSTEM_TOPIC_LIST_FROM_NS (304) or _FROM_BROKER (305).
    """

    topics: Annotated[tuple[str, ...], Named("topicList")]
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class KVTable(Body):
    """Texts by name.

    The response to GET_BROKER_RUNTIME_INFO (28), a broker's report on itself, and to GET_KVLIST_BY_NAMESPACE (219), a
    namespace of the name server's settings.
    """

    table: dict[str, str]
