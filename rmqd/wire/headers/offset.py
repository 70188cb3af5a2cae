"""Headers about offsets: stored offsets, the ends of a queue, a point in time, and resets."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConsumerOffsetRequestHeader(RequestHeader, code=RequestCode.QUERY_CONSUMER_OFFSET):
    """Asks for a group's stored offset. `set_zero_if_not_found=False` makes the broker report a missing offset."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConsumerOffsetRequestHeader(RequestHeader, code=RequestCode.UPDATE_CONSUMER_OFFSET):
    """Stores a group's offset. The broker accepts any value, also a lower one."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOffsetRequestHeader(RequestHeader, code=RequestCode.SEARCH_OFFSET_BY_TIMESTAMP):
    """Asks for the offset of the first message stored at a time (milliseconds)."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMaxOffsetRequestHeader(RequestHeader, code=RequestCode.GET_MAX_OFFSET):
    """Asks for the offset that the next message will get."""

    topic: str
    queue_id: int
    committed: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMinOffsetRequestHeader(RequestHeader, code=RequestCode.GET_MIN_OFFSET):
    """Asks for the offset of the oldest message that the broker keeps."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeRequestHeader(RequestHeader, code=RequestCode.GET_EARLIEST_MSG_STORETIME):
    """Asks for the store time of the oldest message that the broker keeps."""

    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetResponseHeader(Header):
    """The response to QUERY_CONSUMER_OFFSET (14), SEARCH_OFFSET_BY_TIMESTAMP (29), GET_MAX_OFFSET, GET_MIN_OFFSET."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEarliestMsgStoretimeResponseHeader(Header):
    """The response to GET_EARLIEST_MSG_STORETIME (32), in milliseconds; -1 if the queue is empty."""

    timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetRequestHeader(RequestHeader, code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET):
    """Resets a group's offsets to a time in milliseconds (-1: to the end).

    Operators send INVOKE_BROKER_TO_RESET_OFFSET (222) to a broker. The broker sends RESET_CONSUMER_CLIENT_OFFSET (220)
    to the members.
    """

    topic: str
    group: str
    timestamp: int
    is_force: bool
    queue_id: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloneGroupOffsetRequestHeader(RequestHeader, code=RequestCode.CLONE_GROUP_OFFSET):
    """Copies one group's offsets to another group. Without `offline`, only in topics that the source subscribes to."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCorrectionOffsetHeader(RequestHeader, code=RequestCode.QUERY_CORRECTION_OFFSET):
    """Asks for the least offsets of a topic's groups, except groups in `filter_groups`, a comma-separated list."""

    compare_group: str
    topic: str
    filter_groups: str | None = None
