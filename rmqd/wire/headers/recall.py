"""Headers of the request that takes back a message before its time has come (RocketMQ 5.3.2 and later)."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageRequestHeader(RequestHeader, code=RequestCode.RECALL_MESSAGE):
    """Takes a timer message back. `recall_handle` came with the answer to its send (`rmqd.wire.recall`)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallMessageResponseHeader(Header):
    """The unique key of the message that is taken back."""

    msg_id: str
