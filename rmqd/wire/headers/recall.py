"""Headers of the request that recalls a timer message before its delivery time (RocketMQ 5.3.2 and later)."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageRequestHeader(RequestHeader, code=RequestCode.RECALL_MESSAGE):
    """Recalls a timer message. `recall_handle` is from the response to its send (`rmqd.wire.recall`)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageResponseHeader(Header):
    """The unique key of the recalled message."""

    msg_id: str
