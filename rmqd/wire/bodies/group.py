"""A group's members, and its offsets: stored, held by members, and reset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.base import Body, ClientId, Group, Offset, QueueId, Wire
from rmqd.wire.bodies.data_version import DataVersion
from rmqd.wire.bodies.heartbeat import SubscriptionData
from rmqd.wire.bodies.queue_map import offsets_from_dict, queue_from_dict, queue_to_dict
from rmqd.wire.fields import Named
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class GetConsumerListByGroupResponseBody(Body):
    """The response to GET_CONSUMER_LIST_BY_GROUP (38): the client ids of a group's members.

    A member with two connections appears twice.
    """

    consumer_id_list: tuple[str, ...]


def _read_reset(value: object, what: str) -> dict[MessageQueue, int]:
    """Read a map or a list. The broker writes the form for the language of the client that requested the reset."""
    if isinstance(value, list):
        return {queue_from_dict(item): fields.integer(item, "offset") for item in value}
    return offsets_from_dict(value, what)


@dataclass(frozen=True, slots=True)
class ResetOffsetBody(Body):
    """The new offsets of a group's queues.

    The body of RESET_CONSUMER_CLIENT_OFFSET (220), from a broker to members, and of the response to
    INVOKE_BROKER_TO_RESET_OFFSET (222).
    """

    offset_table: Annotated[dict[MessageQueue, int], Wire(read=_read_reset)]

    def to_json(self, *, as_list: bool = False) -> bytes:
        """Return the body; as a list for members of a C++ tool's reset."""
        if not as_list:
            return Body.to_json(self)
        entries = [
            dict(sorted((queue_to_dict(queue) | {"offset": offset}).items()))
            for queue, offset in self.offset_table.items()
        ]
        return loose_json.dumps({"offsetTable": entries})


@dataclass(frozen=True, slots=True)
class GetConsumerStatusBody(Body):
    """The offsets that members hold.

    The response to GET_CONSUMER_STATUS_FROM_CLIENT (221), for one member, and to INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    (223), for all members by client id.
    """

    message_queue_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumer_table: Mapping[ClientId, Mapping[MessageQueue, int]] | None = None


@dataclass(frozen=True, slots=True)
class QuerySubscriptionResponseBody(Body):
    """The response to QUERY_SUBSCRIPTION_BY_CONSUMER (345): the broker's copy of a group's subscription to one topic.

    `subscription_data` is None if the broker has no copy.
    """

    group: str | None = None
    topic: str | None = None
    subscription_data: SubscriptionData | None = None


_Offsets = Mapping[str, Mapping[QueueId, Offset]]


def _read_offsets(value: object, what: str) -> _Offsets:
    table = fields.as_object(value, what)
    return {
        fields.as_text(key, what): {
            fields.as_integer(queue_id, "a queue id"): fields.as_integer(offset, "an offset")
            for queue_id, offset in fields.mapping(table, key).items()
        }
        for key in table
    }


@dataclass(frozen=True, slots=True)
class ConsumerOffsetSerializeWrapper(Body, bare_keys=True):
    """The response to GET_ALL_CONSUMER_OFFSET (43): all offsets of a broker, by `topic@group` and queue id.

    `pull_offset_table` holds the offsets that groups have pulled up to.
    """

    offset_table: Annotated[_Offsets, Wire(read=_read_offsets)]
    pull_offset_table: Annotated[_Offsets, Wire(read=_read_offsets)] = field(default_factory=dict)
    group_topic_map: Mapping[Group, tuple[str, ...]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class QueryCorrectionOffsetBody(Body, bare_keys=True):
    """The response to QUERY_CORRECTION_OFFSET (308): the least offset of all groups, by queue id.

    It is the largest possible number if the compared group is behind.
    """

    correction_offsets: Mapping[QueueId, Offset]


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """The response to QUERY_TOPIC_CONSUME_BY_WHO (300): names of groups."""

    groups: Annotated[tuple[str, ...], Named("groupList")]
