"""Headers of sending: messages, and failed ones back to the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rmqd.codes import RequestCode
from rmqd.wire.headers.base import Header, RequestHeader, wire_name
from rmqd.wire.topics import DEFAULT_TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequestHeader(RequestHeader):
    """Sends a message, with fields by their long names. `born_timestamp` is in milliseconds."""

    code: ClassVar[RequestCode] = RequestCode.SEND_MESSAGE

    producer_group: str
    topic: str
    default_topic: str = wire_name("defaultTopic", DEFAULT_TOPIC)
    default_topic_queue_nums: int = 4
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    batch: bool | None = None
    max_reconsume_times: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageRequestHeaderV2(RequestHeader):
    """Sends a message (310) or a batch (320), with fields by letters. `born_timestamp` is in milliseconds."""

    code: ClassVar[RequestCode] = RequestCode.SEND_MESSAGE_V2

    producer_group: str = wire_name("a")
    topic: str = wire_name("b")
    default_topic: str = wire_name("c", DEFAULT_TOPIC)
    default_topic_queue_nums: int = wire_name("d", 4)
    queue_id: int = wire_name("e")
    sys_flag: int = wire_name("f")
    born_timestamp: int = wire_name("g")
    flag: int = wire_name("h")
    properties: str | None = wire_name("i", None)
    reconsume_times: int | None = wire_name("j", None)
    unit_mode: bool | None = wire_name("k", None)
    max_reconsume_times: int | None = wire_name("l", None)
    batch: bool | None = wire_name("m", None)
    broker_name: str | None = wire_name("n", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMessageResponseHeader(Header):
    """Where the message was stored; for a batch the ids are joined by commas and the offset is the first one's."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSendMsgBackRequestHeader(RequestHeader):
    """Has the broker deliver a message again later; `offset` is its commit log offset, the only thing looked up.

    `delay_level` 0 leaves the delay to the broker (3 + times), -1 makes it a dead letter.
    """

    code: ClassVar[RequestCode] = RequestCode.CONSUMER_SEND_MSG_BACK

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
