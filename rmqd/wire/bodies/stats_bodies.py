"""Bodies about offsets of groups and topics, a broker's counters, connected members, and entries of a queue's index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar

from rmqd.wire import fields
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.bodies.json_body import Body, Topic, WireOptions
from rmqd.wire.message_queue import MessageQueue


class OffsetWrapper(Body, called="a queue's offsets"):
    """A group's offset in one queue. `last_timestamp` is the last handled message's store time (Unix ms), or 0."""

    broker_offset: int = 0
    consumer_offset: int = 0
    pull_offset: int = 0
    last_timestamp: int = 0

    @property
    def lag(self) -> int:
        """The number of messages between the group's offset and the queue's end."""
        return max(0, self.broker_offset - self.consumer_offset)


class ConsumeStats(Body, called="a group's place"):
    """The response to GET_CONSUME_STATS (208): a group's offsets in all its queues, including its retry topic."""

    offset_table: dict[MessageQueue, OffsetWrapper]
    consume_tps: float = 0.0


_StatsOfGroups = dict[str, tuple[ConsumeStats, ...]]


def _read_groups(value: object, what: str) -> _StatsOfGroups:
    """Convert the JSON list, whose items are maps with one group each, into one map by group."""
    groups = {}
    for item in fields.as_list(value, what):
        one = fields.as_object(item, "a group's stats")
        for group in one:
            name = fields.as_text(group, "a group")
            groups[name] = tuple(map(ConsumeStats.from_dict, fields.optional_list(one, name)))
    return groups


def _write_groups(groups: _StatsOfGroups) -> list[dict[str, Any]]:
    return [{group: [stats.to_dict() for stats in topics]} for group, topics in groups.items()]


class ConsumeStatsList(Body):
    """The response to GET_BROKER_CONSUME_STATS (317): all groups' offsets on one broker, topic by topic."""

    consume_stats_list: Annotated[_StatsOfGroups, WireOptions(read=_read_groups, write=_write_groups)] = field(
        default_factory=dict
    )
    broker_addr: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object with two sums of lags. As in Java, an offset beyond a queue's end reduces a sum."""
        offsets = [
            offsets
            for topics in self.consume_stats_list.values()
            for stats in topics
            for offsets in stats.offset_table.values()
        ]
        return Body.to_dict(self) | {
            "totalDiff": sum(one.broker_offset - one.consumer_offset for one in offsets),
            "totalInflightDiff": sum(one.pull_offset - one.consumer_offset for one in offsets),
        }


class TopicOffset(Body, called="a queue's ends"):
    """The ends of one queue. `max_offset` is the offset of the next message. The timestamp is Unix milliseconds."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


class TopicStatsTable(Body):
    """The response to GET_TOPIC_STATS_INFO (202): the ends of all queues of a topic on one broker."""

    offset_table: dict[MessageQueue, TopicOffset]
    topic_put_tps: float = 0.0


class BrokerStatsItem(Body, called="a counter"):
    """A counter's increase over a time span: in total (`sum`), per second (`tps`), and per event (`avgpt`)."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    """The response to VIEW_BROKER_STATS_DATA (315): a counter's increase over the last minute, hour and day."""

    stats_minute: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_day: BrokerStatsItem


class Connection(Body, called="a connection"):
    """One connection of a group's member to a broker."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "OTHER"
    version: int = 0


class ConsumerConnection(Body):
    """The response to GET_CONSUMER_CONNECTION_LIST (203): a group's members, and their last heartbeat's settings."""

    connection_set: tuple[Connection, ...]
    subscription_table: dict[Topic, SubscriptionData]
    consume_type: Annotated[str | None, WireOptions(last=True)] = None
    message_model: Annotated[str | None, WireOptions(last=True)] = None
    consume_from_where: Annotated[str | None, WireOptions(last=True)] = None


class ConsumeQueueData(Body, called="an entry of a queue"):
    """One entry of a queue's index: a message's commit log offset, its size in bytes, and the hash of its tag.

    `eval` is the result of a filter by an extended index. It is False, because the embedded broker has no such index.
    """

    constants: ClassVar[Mapping[str, Any]] = {"eval": False}

    physic_offset: int
    physic_size: int
    tags_code: int


class QueryConsumeQueueResponseBody(Body):
    """The response to QUERY_CONSUME_QUEUE (321): entries of a queue's index, its ends, and a subscription."""

    min_queue_index: int
    max_queue_index: int
    queue_data: tuple[ConsumeQueueData, ...]
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
