"""Headers about offsets: a group's, a queue's ends, a point in time, and resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetRequestHeader(RequestHeader):
    """Asks for a group's stored offset; `set_zero_if_not_found=False` makes the broker say when there is none."""

    code: ClassVar[RequestCode] = RequestCode.QUERY_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffsetRequestHeader(RequestHeader):
    """Stores a group's offset. The broker takes any value, a lower one too."""

    code: ClassVar[RequestCode] = RequestCode.UPDATE_CONSUMER_OFFSET

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetRequestHeader(RequestHeader):
    """Asks for the offset of the first message stored at a time (milliseconds)."""

    code: ClassVar[RequestCode] = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffsetRequestHeader(RequestHeader):
    """Asks for the offset that the next message will get."""

    code: ClassVar[RequestCode] = RequestCode.GET_MAX_OFFSET

    topic: str
    queue_id: int
    committed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffsetRequestHeader(RequestHeader):
    """Asks for the offset of the oldest message that is still kept."""

    code: ClassVar[RequestCode] = RequestCode.GET_MIN_OFFSET

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeRequestHeader(RequestHeader):
    """Asks when the oldest message that is still kept was stored."""

    code: ClassVar[RequestCode] = RequestCode.GET_EARLIEST_MSG_STORETIME

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResponseHeader(Header):
    """The reply to QUERY_CONSUMER_OFFSET (14), SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET and GET_MIN_OFFSET."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeResponseHeader(Header):
    """The reply to GET_EARLIEST_MSG_STORETIME (32), in milliseconds; -1 where the queue is empty."""

    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetRequestHeader(RequestHeader):
    """Resets a group's offsets to a time in milliseconds (-1: to the end).

    Operators send INVOKE_BROKER_TO_RESET_OFFSET (222) to a broker, and brokers RESET_CONSUMER_CLIENT_OFFSET (220) to
    members.
    """

    code: ClassVar[RequestCode] = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    topic: str
    group: str
    timestamp: int
    is_force: bool
    queue_id: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneGroupOffsetRequestHeader(RequestHeader):
    """Gives one group the offsets of another. Without `offline`, only in topics that the other subscribes to."""

    code: ClassVar[RequestCode] = RequestCode.CLONE_GROUP_OFFSET

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCorrectionOffsetHeader(RequestHeader):
    """Asks for the least offsets of a topic's groups, except those in `filter_groups`, a list with commas."""

    code: ClassVar[RequestCode] = RequestCode.QUERY_CORRECTION_OFFSET

    compare_group: str
    topic: str
    filter_groups: str | None = None
