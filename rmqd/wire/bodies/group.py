"""A group's members, and the offsets that it has stored, holds, and is reset to."""

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
    """The reply to GET_CONSUMER_LIST_BY_GROUP (38): the client ids of a group's members.

    A member that has two connections appears twice.
    """

    consumer_id_list: tuple[str, ...]


def _read_reset(value: object, what: str) -> dict[MessageQueue, int]:
    """A map or a list: the broker writes what the language of the one who asked for the reset reads."""
    if isinstance(value, list):
        return {queue_from_dict(item): fields.integer(item, "offset") for item in value}
    return offsets_from_dict(value, what)


@dataclass(frozen=True, slots=True)
class ResetOffsetBody(Body):
    """Where a group's queues are set to.

    RESET_CONSUMER_CLIENT_OFFSET (220), which a broker sends to members, and the reply to INVOKE_BROKER_TO_RESET_OFFSET
    (222).
    """

    offset_table: Annotated[dict[MessageQueue, int], Wire(read=_read_reset)]

    def to_json(self, *, as_list: bool = False) -> bytes:
        """The body; as a list for those whom a C++ tool asked to be reset."""
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

    The reply to GET_CONSUMER_STATUS_FROM_CLIENT (221), of one member, and to INVOKE_BROKER_TO_GET_CONSUMER_STATUS
    (223), of all members by client id.
    """

    message_queue_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumer_table: Mapping[ClientId, Mapping[MessageQueue, int]] | None = None


@dataclass(frozen=True, slots=True)
class QuerySubscriptionResponseBody(Body):
    """The reply to QUERY_SUBSCRIPTION_BY_CONSUMER (345): a group's subscription to one topic as the broker has it.

    `subscription_data` is None where it has none.
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
    """The reply to GET_ALL_CONSUMER_OFFSET (43): all offsets of a broker, by `topic@group` and queue id.

    `pull_offset_table` says how far groups have pulled.
    """

    offset_table: Annotated[_Offsets, Wire(read=_read_offsets)]
    pull_offset_table: Annotated[_Offsets, Wire(read=_read_offsets)] = field(default_factory=dict)
    group_topic_map: Mapping[Group, tuple[str, ...]] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class QueryCorrectionOffsetBody(Body, bare_keys=True):
    """The reply to QUERY_CORRECTION_OFFSET (308): by queue id, the least offset of all groups.

    It is the largest number there is where the compared group is behind.
    """

    correction_offsets: Mapping[QueueId, Offset]


@dataclass(frozen=True, slots=True)
class GroupList(Body):
    """The reply to QUERY_TOPIC_CONSUME_BY_WHO (300): names of groups."""

    groups: Annotated[tuple[str, ...], Named("groupList")]
