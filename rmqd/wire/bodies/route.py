"""TopicRouteData, with its parts: a topic's queues and their brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Self

from rmqd.wire import fields, limits, loose_json
from rmqd.wire.bodies.base import Body, Wire
from rmqd.wire.bodies.static_topic import TopicQueueMappingInfo, queue_count
from rmqd.wire.fields import Named

PERM_READ: Final = 4
PERM_WRITE: Final = 2
MASTER_ID: Final = 0


@dataclass(frozen=True, slots=True, order=True)
class QueueData(Body, called="queueData"):
    """A topic's queues on one broker."""

    broker_name: str
    read_queue_nums: Annotated[int, Wire(read=queue_count)]
    write_queue_nums: Annotated[int, Wire(read=queue_count)]
    perm: int
    topic_sys_flag: int = 0

    @property
    def is_readable(self) -> bool:
        return self.perm & PERM_READ != 0

    @property
    def is_writeable(self) -> bool:
        return self.perm & PERM_WRITE != 0


def _by_broker_id(value: object, what: str) -> dict[int, str]:
    """Read the addresses in the order of broker ids, so the master's address is the first."""
    addresses = {
        fields.as_integer(broker_id, "a broker id"): fields.as_text(address, what)
        for broker_id, address in fields.as_object(value, what).items()
    }
    return dict(sorted(addresses.items()))


@dataclass(frozen=True, slots=True)
class BrokerData(Body, called="brokerData"):
    """The addresses ("host:port") of one broker's replicas by id. The master's id is 0."""

    cluster: Annotated[str, Wire(absent="")]
    broker_name: str
    broker_addrs: Annotated[dict[int, str], Wire(read=_by_broker_id)]
    enable_acting_master: bool = False

    @property
    def master(self) -> str | None:
        """The master's address; None while the broker has no master."""
        return self.broker_addrs.get(MASTER_ID)


_Mappings = tuple[TopicQueueMappingInfo, ...]


def _read_mappings(value: object, what: str) -> _Mappings:
    return tuple(map(TopicQueueMappingInfo.from_dict, fields.as_object(value, what).values()))


def _write_mappings(mappings: _Mappings) -> dict[str, Any] | None:
    return {info.bname: info.to_dict() for info in mappings} or None


@dataclass(frozen=True, slots=True)
class TopicRouteData(Body):
    """The response to GET_ROUTEINFO_BY_TOPIC (105): all brokers and queues of a topic.

    `order_topic_conf` is "broker:queues;…" for ordered topics. `mappings` are the mappings of a static topic, by
    broker: its logical queues, which move between brokers.
    """

    constants: ClassVar[Mapping[str, Any]] = {"filterServerTable": {}}

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: Annotated[str | None, Wire(last=True)] = None
    mappings: Annotated[
        _Mappings, Named("topicQueueMappingByBroker"), Wire(read=_read_mappings, write=_write_mappings)
    ] = ()

    def to_json(self, *, strict: bool = True) -> bytes:
        """Return the body. Clients before 4.9.4 need the loose dialect, with bare numbers as keys."""
        return loose_json.dumps(self.to_dict(), bare_keys=not strict)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body. Raises ProtocolError, also if a route exceeds `wire.limits`."""
        limits.check_route_size(body)
        data = fields.body_object(body)
        limits.check_brokers(max(len(fields.items(data, name)) for name in ("queueDatas", "brokerDatas")))
        route = cls._from_object(data)
        limits.check_queues(max(queues.read_queue_nums, queues.write_queue_nums) for queues in route.queue_datas)
        return route
