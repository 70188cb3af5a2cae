"""Bodies about a group's members and offsets: the list of members (38), resets (220, 222), held offsets (221, 223)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.heartbeat import SubscriptionData
from rmqd.wire.message import MessageQueue
from rmqd.wire.queue_map import offsets_from_dict, queue_from_dict, queue_map_to_dict


@dataclass(frozen=True, slots=True)
class GetConsumerListByGroupResponseBody:
    """The client ids of a group's members; one that has two connections appears twice."""

    consumer_id_list: tuple[str, ...]

    def to_json(self) -> bytes:
        """The body of the reply to 38."""
        return loose_json.dumps({"consumerIdList": list(self.consumer_id_list)})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 38. Raises ProtocolError."""
        return cls(fields.texts(fields.body_object(body), "consumerIdList"))


@dataclass(frozen=True, slots=True)
class ResetOffsetBody:
    """Where a group's queues are set to. The broker writes a map or a list, after the language of who asked for it."""

    offset_table: dict[MessageQueue, int]

    def to_json(self) -> bytes:
        """The body of 220 and of the reply to 222, as a map."""
        return loose_json.dumps({"offsetTable": queue_map_to_dict(self.offset_table)})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of 220 or of the reply to 222, in either form. Raises ProtocolError."""
        table = fields.body_object(body).get("offsetTable")
        if isinstance(table, list):
            return cls({queue_from_dict(item): fields.integer(item, "offset") for item in table})
        return cls(offsets_from_dict({} if table is None else table, "offsetTable"))


@dataclass(frozen=True, slots=True)
class GetConsumerStatusBody:
    """The offsets that one member holds (221), and those of all members by client id (223)."""

    message_queue_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumer_table: Mapping[str, Mapping[MessageQueue, int]] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """The body of the replies to 221 and 223."""
        value: dict[str, Any] = {"messageQueueTable": queue_map_to_dict(self.message_queue_table)}
        if self.consumer_table:
            value["consumerTable"] = {name: queue_map_to_dict(table) for name, table in self.consumer_table.items()}
        return loose_json.dumps(value)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 221 or 223. Raises ProtocolError."""
        data = fields.body_object(body)
        return cls(
            offsets_from_dict(fields.mapping(data, "messageQueueTable"), "messageQueueTable"),
            {
                fields.as_text(client_id, "a client id"): offsets_from_dict(table, "consumerTable")
                for client_id, table in fields.mapping(data, "consumerTable").items()
            },
        )


@dataclass(frozen=True, slots=True)
class QuerySubscriptionResponseBody:
    """A group's subscription to one topic as the broker has it; `subscription_data` is None where it has none."""

    group: str | None
    topic: str | None
    subscription_data: SubscriptionData | None

    def to_json(self) -> bytes:
        """The body of the reply to 345."""
        value: dict[str, Any] = {}
        if self.group is not None:
            value["group"] = self.group
        if self.subscription_data is not None:
            value["subscriptionData"] = self.subscription_data.to_dict()
        if self.topic is not None:
            value["topic"] = self.topic
        return loose_json.dumps(value)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 345. Raises ProtocolError."""
        data = fields.body_object(body)
        subscription = data.get("subscriptionData")
        return cls(
            fields.optional_text(data, "group"),
            fields.optional_text(data, "topic"),
            None if subscription is None else SubscriptionData.from_dict(subscription),
        )
