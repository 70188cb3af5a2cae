"""Headers of lite topics (RIP-83, RocketMQ 5.5): popping them, and being told to let one go."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class PopLiteMessageRequestHeader(RequestHeader, code=RequestCode.POP_LITE_MESSAGE):
    """Asks for messages of any lite topic that the client is subscribed to; `topic` is their parent.

    Times are milliseconds. A `born_time` of 0 stands for the broker's own clock.
    """

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: int
    invisible_time: int
    poll_time: int
    born_time: int
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PopLiteMessageResponseHeader(Header):
    """When and for how long messages were popped; `order_count_info` is read by `rmqd.wire.lite.parse_tries`."""

    pop_time: int
    invisible_time: int
    revive_qid: int
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyUnsubscribeLiteRequestHeader(RequestHeader, code=RequestCode.NOTIFY_UNSUBSCRIBE_LITE):
    """From a broker: the client is subscribed to the lite topic no longer."""

    lite_topic: str
    consumer_group: str
    client_id: str
