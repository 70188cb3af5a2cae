"""Bodies about the routes of topics, the brokers of a cluster, and static topics.

A static topic (`mqadmin updateStaticTopic`) has logical queues. Each is mapped to a queue of a broker, and may move to
another broker. Clients use a placeholder as the broker name of a logical queue, so that the queue keeps its name when
it moves. Clients send requests about a logical queue to its present leader, the broker that translates its queue id and
offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Final, Self

from rmqd.errors import ProtocolError
from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.json_body import Body, BrokerName, ClusterName, QueueId, WireOptions
from rmqd.wire.fields import WireName


class ClusterInfo(Body, bare_keys=True):
    """The response to GET_BROKER_CLUSTER_INFO (106): brokers by name, and broker names by cluster.

    Broker ids are written as bare numbers, whatever the client's version.
    """

    broker_addr_table: dict[BrokerName, BrokerData]
    cluster_addr_table: dict[ClusterName, tuple[str, ...]]


def light_queue_route(info: ClusterInfo) -> TopicRouteData:
    """Return the route of a light message queue: queue 0 of each broker. It is read-only: sends go to other topics."""
    brokers = tuple(broker for _, broker in sorted(info.broker_addr_table.items()))
    return TopicRouteData(tuple(QueueData(broker.broker_name, 1, 0, PERM_READ) for broker in brokers), brokers)


class TopicList(Body):
    """Names of topics. `broker_addr` is set in some responses.

    The response to GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), GET_TOPICS_BY_CLUSTER (224), QUERY_TOPICS_BY_CONSUMER
    (343) and GET_SYSTEM_TOPIC_LIST_FROM_NS (304) or _FROM_BROKER (305).
    """

    topics: Annotated[tuple[str, ...], WireName("topicList")]
    broker_addr: str | None = None


class KVTable(Body):
    """A table of texts by name.

    The response to GET_BROKER_RUNTIME_INFO (28), which has a broker's figures, and to GET_KVLIST_BY_NAMESPACE (219),
    which has one namespace of a name server's key-value table.
    """

    table: dict[str, str]


MOCK_BROKER_PREFIX: Final = "__syslo__"  # Java: LOGICAL_QUEUE_MOCK_BROKER_PREFIX
NO_BROKER: Final = "__syslo__none__"  # leader of a logical queue that no broker claims
GLOBAL_SCOPE: Final = "__global__"


def queue_count(value: object, what: str) -> int:
    """Return `value` if it is a number of queues up to `fields.MAX_QUEUES`, else raise ProtocolError."""
    count = fields.as_integer(value, what)
    if not 0 <= count <= fields.MAX_QUEUES:
        raise ProtocolError(f"{what} must be at most {fields.MAX_QUEUES} queues, not {count}")
    return count


class TopicQueueMappingInfo(Body, called="topicQueueMappingByBroker"):
    """The logical queues of a static topic that one broker claims to lead. A claim with a higher epoch is newer."""

    constants: ClassVar[Mapping[str, Any]] = {"dirty": False}

    bname: str
    total_queues: Annotated[int, WireOptions(read=queue_count)] = 0
    epoch: int = 0
    scope: str = GLOBAL_SCOPE
    curr_id_map: dict[QueueId, QueueId] = field(default_factory=dict)  # logical queue id: queue id on the broker
    topic: str | None = None


class LogicQueueMappingItem(Body, called="a part of a logical queue", kw_only=True):
    """A part of a logical queue: the broker's queue that stores it, and the part's first offset in both queues."""

    gen: int = 0
    queue_id: int
    bname: str
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


class TopicQueueMappingDetail(Body, called="mappingDetail"):
    """The body of UPDATE_AND_CREATE_STATIC_TOPIC (513): all parts of the logical queues that a broker leads or led.

    The last part of a queue receives new messages. The class has all fields of TopicQueueMappingInfo, and more.
    """

    constants: ClassVar[Mapping[str, Any]] = {"dirty": False}

    topic: str
    bname: str
    total_queues: Annotated[int, WireOptions(read=queue_count)] = 0
    epoch: int = 0
    scope: str = GLOBAL_SCOPE
    curr_id_map: dict[QueueId, QueueId] = field(default_factory=dict)
    hosted_queues: dict[QueueId, tuple[LogicQueueMappingItem, ...]] = field(default_factory=dict)

    def as_mapping_info(self) -> TopicQueueMappingInfo:
        """Return the mapping as routes contain it: only the queues that the broker leads now (`cloneAsMappingInfo`)."""
        led = {
            queue_id: items[-1].queue_id
            for queue_id, items in self.hosted_queues.items()
            if items and items[-1].bname == self.bname
        }
        return TopicQueueMappingInfo(self.bname, self.total_queues, self.epoch, curr_id_map=led, topic=self.topic)


def is_logical_broker(broker_name: str) -> bool:
    """Return whether the name is a placeholder, which logical queues of static topics have instead of a broker name."""
    return broker_name.startswith(MOCK_BROKER_PREFIX)


def mock_broker_name(scope: str) -> str:
    """Return the placeholder broker name for a scope of static topics (`TopicQueueMappingUtils.getMockBrokerName`)."""
    return MOCK_BROKER_PREFIX + (scope[2:] if scope == GLOBAL_SCOPE else scope)


def queue_leaders(mappings: Iterable[TopicQueueMappingInfo]) -> dict[tuple[str, int], str]:
    """Return the broker name of each logical queue's leader, by (placeholder broker name, queue id).

    If two brokers claim a queue, the claim with the higher epoch wins. The largest `total_queues` is the number of
    queues. The leader of a queue that no broker claims is NO_BROKER. Java: `topicRouteData2EndpointsForStaticTopic`.
    """
    newest_first = sorted(mappings, key=lambda info: -info.epoch)
    found: dict[tuple[str, int], str] = {}
    for scope in {info.scope: None for info in newest_first}:
        name, total, claims = mock_broker_name(scope), 0, dict[int, TopicQueueMappingInfo]()
        for info in newest_first:
            if info.scope == scope:
                total = max(total, info.total_queues)
                for queue_id in info.curr_id_map:
                    claims.setdefault(queue_id, info)
        for queue_id in range(total):
            info_of = claims.get(queue_id)
            found[name, queue_id] = NO_BROKER if info_of is None else info_of.bname
    return found


PERM_READ: Final = 4
PERM_WRITE: Final = 2
MASTER_ID: Final = 0


class QueueData(Body, called="queueData", order=True):
    """A topic's queues on one broker: numbers of readable and writable queues, and the permission bits."""

    broker_name: str
    read_queue_nums: Annotated[int, WireOptions(read=queue_count)]
    write_queue_nums: Annotated[int, WireOptions(read=queue_count)]
    perm: int
    topic_sys_flag: int = 0

    @property
    def is_readable(self) -> bool:
        return self.perm & PERM_READ != 0

    @property
    def is_writeable(self) -> bool:
        return self.perm & PERM_WRITE != 0


def _by_broker_id(value: object, what: str) -> dict[int, str]:
    """Return the addresses of a broker's replicas by broker id, sorted, so that the master (id 0) is first."""
    addresses = {
        fields.as_integer(broker_id, "a broker id"): fields.as_text(address, what)
        for broker_id, address in fields.as_object(value, what).items()
    }
    return dict(sorted(addresses.items()))


class BrokerData(Body, called="brokerData"):
    """The addresses ("host:port") of one broker's replicas, by broker id. The master has the id 0."""

    cluster: Annotated[str, WireOptions(absent="")]
    broker_name: str
    broker_addrs: Annotated[dict[int, str], WireOptions(read=_by_broker_id)]
    enable_acting_master: bool = False

    @property
    def master(self) -> str | None:
        """The master's address; None if the broker has no master now."""
        return self.broker_addrs.get(MASTER_ID)


_Mappings = tuple[TopicQueueMappingInfo, ...]


def _read_mappings(value: object, what: str) -> _Mappings:
    return tuple(map(TopicQueueMappingInfo.from_dict, fields.as_object(value, what).values()))


def _write_mappings(mappings: _Mappings) -> dict[str, Any] | None:
    return {info.bname: info.to_dict() for info in mappings} or None


class TopicRouteData(Body):
    """The response to GET_ROUTEINFO_BY_TOPIC (105): all brokers and queues of a topic.

    `order_topic_conf` is "broker:queues;…" for ordered topics, else None. `mappings` are the brokers' claims to the
    logical queues of a static topic; empty for other topics.
    """

    constants: ClassVar[Mapping[str, Any]] = {"filterServerTable": {}}

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: Annotated[str | None, WireOptions(last=True)] = None
    mappings: Annotated[
        _Mappings, WireName("topicQueueMappingByBroker"), WireOptions(read=_read_mappings, write=_write_mappings)
    ] = ()

    def to_json(self, *, strict: bool = True) -> bytes:
        """Return the body. Clients before 4.9.4 need `strict=False`, which writes numeric keys without quotes."""
        return loose_json.dumps(self.to_dict(), bare_keys=not strict)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body. Raises ProtocolError if it is invalid, or exceeds the limits of `wire.fields`."""
        fields.check_body(body, "a route", fields.MAX_ROUTE_BYTES, fields.MAX_ROUTE_OBJECTS)
        data = fields.body_object(body)
        brokers = max(len(fields.optional_list(data, name)) for name in ("queueDatas", "brokerDatas"))
        if brokers > fields.MAX_BROKERS:
            raise ProtocolError(f"a route has {brokers} brokers for one topic; expected at most {fields.MAX_BROKERS}")
        route = cls._from_object(data)
        queues = sum(max(one.read_queue_nums, one.write_queue_nums) for one in route.queue_datas)
        if queues > fields.MAX_QUEUES:
            raise ProtocolError(f"a route has {queues} queues of one topic; expected at most {fields.MAX_QUEUES}")
        return route
