"""Where a topic's queues are: TopicRouteData (the reply to 105) and its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from rmqd.errors import ProtocolError
from rmqd.wire import fields, limits, loose_json
from rmqd.wire.bodies.static_topic import TopicQueueMappingInfo

PERM_READ: Final = 4
PERM_WRITE: Final = 2
MASTER_ID: Final = 0


@dataclass(frozen=True, slots=True, order=True)
class QueueData:
    """A topic's queues on one broker."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0

    @property
    def is_readable(self) -> bool:
        """Whether consumers may pull from it."""
        return self.perm & PERM_READ != 0

    @property
    def is_writeable(self) -> bool:
        """Whether producers may send to it."""
        return self.perm & PERM_WRITE != 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "queueData")
        return cls(
            broker_name=fields.text(data, "brokerName"),
            read_queue_nums=_queue_count(data, "readQueueNums"),
            write_queue_nums=_queue_count(data, "writeQueueNums"),
            perm=fields.integer(data, "perm"),
            topic_sys_flag=fields.integer(data, "topicSysFlag", 0),
        )


@dataclass(frozen=True, slots=True)
class BrokerData:
    """The addresses ("host:port") of one broker's replicas by id; the master's id is 0."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str]
    enable_acting_master: bool = False

    @property
    def master(self) -> str | None:
        """The master's address; None while there is none."""
        return self.broker_addrs.get(MASTER_ID)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "brokerAddrs": dict(self.broker_addrs),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "brokerData")
        addresses = {
            fields.as_integer(broker_id, "a broker id"): fields.as_text(address, "brokerAddrs")
            for broker_id, address in fields.mapping(data, "brokerAddrs").items()
        }
        return cls(
            cluster=fields.text(data, "cluster", ""),
            broker_name=fields.text(data, "brokerName"),
            broker_addrs=dict(sorted(addresses.items())),
            enable_acting_master=fields.boolean(data, "enableActingMaster"),
        )


@dataclass(frozen=True, slots=True)
class TopicRouteData:
    """All brokers and queues of a topic. `order_topic_conf` is "broker:queues;…" for ordered topics.

    `mappings` are those of a static topic by broker: its logical queues, which move from broker to broker.
    """

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: str | None = None
    mappings: tuple[TopicQueueMappingInfo, ...] = ()

    def to_json(self, *, strict: bool = True) -> bytes:
        """The body of the reply to 105; clients before 4.9.4 get the loose dialect."""
        value: dict[str, Any] = {
            "brokerDatas": [broker.to_dict() for broker in self.broker_datas],
            "filterServerTable": {},
            "queueDatas": [queue.to_dict() for queue in self.queue_datas],
        }
        if self.mappings:
            value["topicQueueMappingByBroker"] = {info.bname: info.to_dict() for info in self.mappings}
        if self.order_topic_conf is not None:
            value["orderTopicConf"] = self.order_topic_conf
        return loose_json.dumps(value, bare_keys=not strict)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 105. Raises ProtocolError, also for a route beyond `wire.limits`."""
        limits.check_route_size(body)
        data = fields.body_object(body)
        limits.check_brokers(max(len(fields.items(data, name)) for name in ("queueDatas", "brokerDatas")))
        queue_datas = tuple(QueueData.from_dict(item) for item in fields.items(data, "queueDatas"))
        limits.check_queues(max(queues.read_queue_nums, queues.write_queue_nums) for queues in queue_datas)
        return cls(
            queue_datas=queue_datas,
            broker_datas=tuple(BrokerData.from_dict(item) for item in fields.items(data, "brokerDatas")),
            order_topic_conf=fields.optional_text(data, "orderTopicConf"),
            mappings=tuple(
                TopicQueueMappingInfo.from_dict(item)
                for item in fields.mapping(data, "topicQueueMappingByBroker").values()
            ),
        )


def _queue_count(data: dict[Any, Any], name: str) -> int:
    count = fields.integer(data, name)
    if not 0 <= count <= limits.MOST_QUEUES:
        raise ProtocolError(f"{name} must be a number of queues up to {limits.MOST_QUEUES}, and is {count}")
    return count
