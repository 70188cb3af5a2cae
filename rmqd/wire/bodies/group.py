"""Bodies about a group's members and offsets: the list of members (38), all offsets (43), resets (220, 222), held
offsets (221, 223), corrections (308)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.data_version import DataVersion
from rmqd.wire.bodies.heartbeat import SubscriptionData
from rmqd.wire.bodies.queue_map import offsets_from_dict, queue_from_dict, queue_map_to_dict, queue_to_dict
from rmqd.wire.message_queue import MessageQueue


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

    def to_json(self, *, as_list: bool = False) -> bytes:
        """The body of 220 and of the reply to 222; as a list for those whom a C++ tool asked to be reset."""
        if as_list:
            entries = [
                dict(sorted((queue_to_dict(queue) | {"offset": offset}).items()))
                for queue, offset in self.offset_table.items()
            ]
            return loose_json.dumps({"offsetTable": entries})
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
    consumer_table: Mapping[str, Mapping[MessageQueue, int]] | None = None

    def to_json(self) -> bytes:
        """The body of the replies to 221 and 223."""
        value: dict[str, Any] = {}
        if self.consumer_table is not None:
            value["consumerTable"] = {name: queue_map_to_dict(table) for name, table in self.consumer_table.items()}
        value["messageQueueTable"] = queue_map_to_dict(self.message_queue_table)
        return loose_json.dumps(value)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 221 or 223. Raises ProtocolError."""
        data = fields.body_object(body)
        held = offsets_from_dict(fields.mapping(data, "messageQueueTable"), "messageQueueTable")
        if data.get("consumerTable") is None:
            return cls(held)
        members = fields.mapping(data, "consumerTable").items()
        return cls(
            held,
            {
                fields.as_text(client_id, "a client id"): offsets_from_dict(table, "consumerTable")
                for client_id, table in members
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


_Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class ConsumerOffsetSerializeWrapper:
    """All offsets of a broker, by `topic@group` and queue id; `pull_offset_table` says how far groups have pulled."""

    offset_table: _Offsets
    pull_offset_table: _Offsets = field(default_factory=dict)
    group_topic_map: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)

    def to_json(self) -> bytes:
        """The body of the reply to 43."""
        value = {
            "dataVersion": self.data_version.to_dict(),
            "groupTopicMap": {group: list(topics) for group, topics in self.group_topic_map.items()},
            "offsetTable": {key: dict(queues) for key, queues in self.offset_table.items()},
            "pullOffsetTable": {key: dict(queues) for key, queues in self.pull_offset_table.items()},
        }
        return loose_json.dumps(value, bare_keys=True)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 43. Raises ProtocolError."""
        data = fields.body_object(body)
        topics = fields.mapping(data, "groupTopicMap")
        return cls(
            _offsets_of_groups(data, "offsetTable"),
            _offsets_of_groups(data, "pullOffsetTable"),
            {fields.as_text(group, "a group"): fields.texts(topics, group) for group in topics},
            DataVersion.from_dict(fields.mapping(data, "dataVersion")),
        )


@dataclass(frozen=True, slots=True)
class QueryCorrectionOffsetBody:
    """By queue id, the least offset of all groups; the largest number there is where the compared group is behind."""

    correction_offsets: Mapping[int, int]

    def to_json(self) -> bytes:
        """The body of the reply to 308."""
        return loose_json.dumps({"correctionOffsets": dict(self.correction_offsets)}, bare_keys=True)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 308. Raises ProtocolError."""
        return cls(_by_queue_id(fields.mapping(fields.body_object(body), "correctionOffsets")))


def _offsets_of_groups(data: dict[Any, Any], name: str) -> _Offsets:
    table = fields.mapping(data, name)
    return {fields.as_text(key, name): _by_queue_id(fields.mapping(table, key)) for key in table}


def _by_queue_id(queues: dict[Any, Any]) -> dict[int, int]:
    return {
        fields.as_integer(key, "a queue id"): fields.as_integer(offset, "an offset") for key, offset in queues.items()
    }


@dataclass(frozen=True, slots=True)
class GroupList:
    """Names of groups."""

    groups: tuple[str, ...]

    def to_json(self) -> bytes:
        """The body of the reply to 300."""
        return loose_json.dumps({"groupList": list(self.groups)})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 300. Raises ProtocolError."""
        return cls(fields.texts(fields.body_object(body), "groupList"))
