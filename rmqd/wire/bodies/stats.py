"""Where groups and topics stand: ConsumeStats (208, 317), TopicStatsTable (202), counters (315), members (203)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.heartbeat import SubscriptionData
from rmqd.wire.bodies.queue_map import queue_map_from_dict, queue_map_to_dict
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class OffsetWrapper:
    """A group's place in one queue. `last_timestamp` is the store time (ms) of the last handled message, or 0."""

    broker_offset: int
    consumer_offset: int
    pull_offset: int = 0
    last_timestamp: int = 0

    @property
    def lag(self) -> int:
        """Messages that the group has not finished."""
        return max(0, self.broker_offset - self.consumer_offset)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "brokerOffset": self.broker_offset,
            "consumerOffset": self.consumer_offset,
            "lastTimestamp": self.last_timestamp,
            "pullOffset": self.pull_offset,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a queue's offsets")
        return cls(
            fields.integer(data, "brokerOffset", 0),
            fields.integer(data, "consumerOffset", 0),
            fields.integer(data, "pullOffset", 0),
            fields.integer(data, "lastTimestamp", 0),
        )


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """A group's place in all its queues, retry topic included."""

    offset_table: dict[MessageQueue, OffsetWrapper]
    consume_tps: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        table = {queue: offsets.to_dict() for queue, offsets in self.offset_table.items()}
        return {"consumeTps": self.consume_tps, "offsetTable": queue_map_to_dict(table)}

    def to_json(self) -> bytes:
        """The body of the reply to 208."""
        return loose_json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 208. Raises ProtocolError."""
        return cls.from_dict(fields.body_object(body))

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a group's place")
        table = queue_map_from_dict(fields.mapping(data, "offsetTable"), "offsetTable")
        return cls(
            {queue: OffsetWrapper.from_dict(value) for queue, value in table.items()},
            fields.number(data, "consumeTps"),
        )


@dataclass(frozen=True, slots=True)
class ConsumeStatsList:
    """Every group's place on one broker, topic by topic."""

    consume_stats_list: dict[str, tuple[ConsumeStats, ...]]
    broker_addr: str = ""

    def to_json(self) -> bytes:
        """The body of the reply to 317."""
        offsets = [
            offsets
            for topics in self.consume_stats_list.values()
            for stats in topics
            for offsets in stats.offset_table.values()
        ]
        return loose_json.dumps(
            {
                "brokerAddr": self.broker_addr,
                "consumeStatsList": [
                    {group: [stats.to_dict() for stats in topics]} for group, topics in self.consume_stats_list.items()
                ],
                # both are summed up as they are, also where a group is ahead of the queue
                "totalDiff": sum(one.broker_offset - one.consumer_offset for one in offsets),
                "totalInflightDiff": sum(one.pull_offset - one.consumer_offset for one in offsets),
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 317. Raises ProtocolError."""
        data = fields.body_object(body)
        groups = {}
        for item in fields.items(data, "consumeStatsList"):
            one = fields.as_object(item, "a group's stats")
            for group in one:
                name = fields.as_text(group, "a group")
                groups[name] = tuple(ConsumeStats.from_dict(stats) for stats in fields.items(one, name))
        return cls(groups, fields.text(data, "brokerAddr", ""))


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The ends of one queue; `max_offset` is what the next message will get. Times in milliseconds."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "lastUpdateTimestamp": self.last_update_timestamp,
            "maxOffset": self.max_offset,
            "minOffset": self.min_offset,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a queue's ends")
        return cls(
            fields.integer(data, "minOffset", 0),
            fields.integer(data, "maxOffset", 0),
            fields.integer(data, "lastUpdateTimestamp", 0),
        )


@dataclass(frozen=True, slots=True)
class TopicStatsTable:
    """The ends of all queues of a topic on one broker."""

    offset_table: dict[MessageQueue, TopicOffset]
    topic_put_tps: float = 0.0

    def to_json(self) -> bytes:
        """The body of the reply to 202."""
        table = {queue: offsets.to_dict() for queue, offsets in self.offset_table.items()}
        return loose_json.dumps({"offsetTable": queue_map_to_dict(table), "topicPutTps": self.topic_put_tps})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 202. Raises ProtocolError."""
        data = fields.body_object(body)
        table = queue_map_from_dict(fields.mapping(data, "offsetTable"), "offsetTable")
        return cls(
            {queue: TopicOffset.from_dict(value) for queue, value in table.items()},
            fields.number(data, "topicPutTps"),
        )


@dataclass(frozen=True, slots=True)
class BrokerStatsItem:
    """What a counter gained in a span of time: in all, a second, and each time."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {"avgpt": self.avgpt, "sum": self.sum, "tps": self.tps}

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a counter")
        return cls(fields.integer(data, "sum", 0), fields.number(data, "tps"), fields.number(data, "avgpt"))


@dataclass(frozen=True, slots=True)
class BrokerStatsData:
    """What a counter gained in the last minute, hour and day."""

    stats_minute: BrokerStatsItem
    stats_hour: BrokerStatsItem
    stats_day: BrokerStatsItem

    def to_json(self) -> bytes:
        """The body of the reply to 315."""
        return loose_json.dumps(
            {
                "statsDay": self.stats_day.to_dict(),
                "statsHour": self.stats_hour.to_dict(),
                "statsMinute": self.stats_minute.to_dict(),
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 315. Raises ProtocolError."""
        data = fields.body_object(body)
        names = ("statsMinute", "statsHour", "statsDay")
        return cls(*(BrokerStatsItem.from_dict(data.get(name)) for name in names))


@dataclass(frozen=True, slots=True)
class Connection:
    """One member of a group as a broker sees it."""

    client_id: str
    client_addr: str
    language: str
    version: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "clientAddr": self.client_addr,
            "clientId": self.client_id,
            "language": self.language,
            "version": self.version,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a connection")
        return cls(
            fields.text(data, "clientId", ""),
            fields.text(data, "clientAddr", ""),
            fields.text(data, "language", "OTHER"),
            fields.integer(data, "version", 0),
        )


@dataclass(frozen=True, slots=True)
class ConsumerConnection:
    """A group's members and what the last heartbeat of any of them said."""

    connection_set: tuple[Connection, ...]
    subscription_table: dict[str, SubscriptionData]
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None

    def to_json(self) -> bytes:
        """The body of the reply to 203."""
        value: dict[str, Any] = {
            "connectionSet": [connection.to_dict() for connection in self.connection_set],
            "subscriptionTable": {topic: data.to_dict() for topic, data in self.subscription_table.items()},
        }
        for name, text in (
            ("consumeFromWhere", self.consume_from_where),
            ("consumeType", self.consume_type),
            ("messageModel", self.message_model),
        ):
            if text is not None:
                value[name] = str(text)
        return loose_json.dumps(value)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 203. Raises ProtocolError."""
        data = fields.body_object(body)
        return cls(
            connection_set=tuple(Connection.from_dict(item) for item in fields.items(data, "connectionSet")),
            subscription_table={
                fields.as_text(topic, "a topic"): SubscriptionData.from_dict(value)
                for topic, value in fields.mapping(data, "subscriptionTable").items()
            },
            consume_type=fields.optional_text(data, "consumeType"),
            message_model=fields.optional_text(data, "messageModel"),
            consume_from_where=fields.optional_text(data, "consumeFromWhere"),
        )
