"""Headers of lite topics (RIP-83, RocketMQ 5.5): pops, and the end of a subscription."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class PopLiteMessageRequestHeader(RequestHeader, code=RequestCode.POP_LITE_MESSAGE):
    """Asks for messages of any lite topic that the client is subscribed to. `topic` is the parent topic.

    Times are milliseconds. If `born_time` is 0, the broker uses its own clock.
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
    """When and for how long messages were popped. `rmqd.wire.lite.parse_tries` reads `order_count_info`."""

    pop_time: int
    invisible_time: int
    revive_qid: int
    order_count_info: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyUnsubscribeLiteRequestHeader(RequestHeader, code=RequestCode.NOTIFY_UNSUBSCRIBE_LITE):
    """From a broker: the client's subscription to the lite topic has ended."""

    lite_topic: str
    consumer_group: str
    client_id: str
