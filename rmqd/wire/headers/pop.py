"""Headers of POP: popping, acknowledging, hiding for longer, peeking, and asking what is waited for.

Times are milliseconds, by the clock of whoever wrote them. QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE and
BATCH_ACK_MESSAGE have no header, only a body.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class PopMessageRequestHeader(RequestHeader, code=RequestCode.POP_MESSAGE):
    """Asks for messages of a topic, of one queue or, with `queue_id` -1, of any; others don't see them for a while.

    `poll_time` is how long the broker may wait for messages; `init_mode` (0 first, 1 last) is where a group without
    offsets starts; `attempt_id` lets an orderly member ask once more for what it may have got.
    """

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
class AckMessageRequestHeader(RequestHeader, code=RequestCode.ACK_MESSAGE):
    """Acknowledges one message; `topic` is the real one, which may be a retry topic, and `extra_info` the handle.

    With a `lite_topic` the topic is its parent, and the offset one in the lite topic's queue.
    """

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    lite_topic: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTimeRequestHeader(RequestHeader, code=RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
    """Hides a message for `invisible_time` from now on; the handle in `extra_info` is void afterwards.

    `lite_topic` as in AckMessageRequestHeader.
    """

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int
    lite_topic: str | None = None
    suspend: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeInvisibleTimeResponseHeader(Header):
    """What is different in the message's new handle."""

    pop_time: int
    invisible_time: int
    revive_qid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekMessageRequestHeader(RequestHeader, code=RequestCode.PEEK_MESSAGE):
    """Asks for messages as a pop does, and leaves them to others."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationRequestHeader(RequestHeader, code=RequestCode.NOTIFICATION):
    """Asks whether there is something to pop, and waits for it for `poll_time`."""

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
class PollingInfoRequestHeader(RequestHeader, code=RequestCode.POLLING_INFO):
    """Asks how many pops of a queue wait on the broker."""

    consumer_group: str
    topic: str
    queue_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PollingInfoResponseHeader(Header):
    """How many pops wait."""

    polling_num: int
