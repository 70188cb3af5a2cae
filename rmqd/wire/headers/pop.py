"""Headers of POP: popping, acknowledging, hiding for longer, peeking, and asking what is waited for.

Times are milliseconds, by the clock of whoever wrote them. QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE and
BATCH_ACK_MESSAGE have no header, only a body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class PopMessageRequestHeader(RequestHeader):
    """Asks for messages of a topic, of one queue or, with `queue_id` -1, of any; others don't see them for a while.

    `poll_time` is how long the broker may wait for messages; `init_mode` (0 first, 1 last) is where a group without
    offsets starts; `attempt_id` lets an orderly member ask once more for what it may have got.
    """

    code: ClassVar[RequestCode] = RequestCode.POP_MESSAGE

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: int
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PopMessageResponseHeader(Header):
    """When and for how long messages were popped; the three infos are read by `rmqd.wire.pop`."""

    pop_time: int
    invisible_time: int
    revive_qid: int
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AckMessageRequestHeader(RequestHeader):
    """Acknowledges one message; `topic` is the real one, which may be a retry topic, and `extra_info` the handle."""

    code: ClassVar[RequestCode] = RequestCode.ACK_MESSAGE

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTimeRequestHeader(RequestHeader):
    """Hides a message for `invisible_time` from now on; the handle in `extra_info` is void afterwards."""

    code: ClassVar[RequestCode] = RequestCode.CHANGE_MESSAGE_INVISIBLETIME

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int
    suspend: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTimeResponseHeader(Header):
    """What is different in the message's new handle."""

    pop_time: int
    invisible_time: int
    revive_qid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekMessageRequestHeader(RequestHeader):
    """Asks for messages as a pop does, and leaves them to others."""

    code: ClassVar[RequestCode] = RequestCode.PEEK_MESSAGE

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRequestHeader(RequestHeader):
    """Asks whether there is something to pop, and waits for it for `poll_time`."""

    code: ClassVar[RequestCode] = RequestCode.NOTIFICATION

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: int
    born_time: int
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationResponseHeader(Header):
    """Whether there is something to pop; `polling_full` if the broker had no room to wait."""

    has_msg: bool
    polling_full: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingInfoRequestHeader(RequestHeader):
    """Asks how many pops of a queue wait on the broker."""

    code: ClassVar[RequestCode] = RequestCode.POLLING_INFO

    consumer_group: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingInfoResponseHeader(Header):
    """How many pops wait."""

    polling_num: int
