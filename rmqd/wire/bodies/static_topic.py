"""Static topics (`mqadmin updateStaticTopic`): logical queues, mapped to queues of brokers; they may move to others.

Clients know a logical queue under a broker name that no broker has, so the queue keeps its name wherever it moves.
Requests about the queue go to the broker that leads it now, which translates queue ids and offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

from rmqd.errors import ProtocolError
from rmqd.wire import fields, limits
from rmqd.wire.bodies.base import Body, QueueId, Wire

MOCK_BROKER_PREFIX: Final = "__syslo__"  # Java: LOGICAL_QUEUE_MOCK_BROKER_PREFIX
NO_BROKER: Final = "__syslo__none__"  # a logical queue without a broker
GLOBAL_SCOPE: Final = "__global__"


def queue_count(value: object, what: str) -> int:
    """Read a number of queues. Raises ProtocolError if it exceeds the limit for one topic."""
    count = fields.as_integer(value, what)
    if not 0 <= count <= limits.MOST_QUEUES:
        raise ProtocolError(f"{what} must be a number of queues of at most {limits.MOST_QUEUES}, and is {count}")
    return count


@dataclass(frozen=True, slots=True)
class TopicQueueMappingInfo(Body, called="topicQueueMappingByBroker"):
    """The logical queues of a static topic that one broker claims to lead. A later epoch is newer."""

    constants: ClassVar[Mapping[str, Any]] = {"dirty": False}

    bname: str
    total_queues: Annotated[int, Wire(read=queue_count)] = 0
    epoch: int = 0
    scope: str = GLOBAL_SCOPE
    curr_id_map: dict[QueueId, QueueId] = field(default_factory=dict)  # logical queue id: the broker's own
    topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicQueueMappingItem(Body, called="a part of a logical queue"):
    """A part of a logical queue: the broker that stores it, and its first offset here and on that broker."""

    gen: int = 0
    queue_id: int
    bname: str
    logic_offset: int = 0
    start_offset: int = 0
    end_offset: int = -1
    time_of_start: int = -1
    time_of_end: int = -1


@dataclass(frozen=True, slots=True)
class TopicQueueMappingDetail(Body, called="mappingDetail"):
    """The body of UPDATE_AND_CREATE_STATIC_TOPIC (513): the parts of each logical queue that a broker leads or led.

    The last part of a queue receives new messages. It has the fields of TopicQueueMappingInfo and more.
    """

    constants: ClassVar[Mapping[str, Any]] = {"dirty": False}

    topic: str
    bname: str
    total_queues: Annotated[int, Wire(read=queue_count)] = 0
    epoch: int = 0
    scope: str = GLOBAL_SCOPE
    curr_id_map: dict[QueueId, QueueId] = field(default_factory=dict)
    hosted_queues: dict[QueueId, tuple[LogicQueueMappingItem, ...]] = field(default_factory=dict)

    def as_route(self) -> TopicQueueMappingInfo:
        """Return the mapping as the topic's route shows it. Java: `cloneAsMappingInfo`."""
        led = {
            queue_id: items[-1].queue_id
            for queue_id, items in self.hosted_queues.items()
            if items and items[-1].bname == self.bname
        }
        return TopicQueueMappingInfo(self.bname, self.total_queues, self.epoch, curr_id_map=led, topic=self.topic)


def is_logical(broker_name: str) -> bool:
    """Return whether the name is the placeholder for a broker that the queues of static topics have."""
    return broker_name.startswith(MOCK_BROKER_PREFIX)


def mock_broker_name(scope: str) -> str:
    """Return the broker name of a scope's logical queues. Java: `TopicQueueMappingUtils.getMockBrokerName`."""
    return MOCK_BROKER_PREFIX + (scope[2:] if scope == GLOBAL_SCOPE else scope)


def leaders(mappings: Iterable[TopicQueueMappingInfo]) -> dict[tuple[str, int], str]:
    """Return the leader of each logical queue, by (broker name, queue id) of the queue.

    If two brokers claim a queue, the later epoch wins. The newest mapping gives the number of queues. Queues within
    that number that no broker claims are included. Java: `topicRouteData2EndpointsForStaticTopic`.
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
