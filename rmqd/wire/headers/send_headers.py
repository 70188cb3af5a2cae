"""Headers of sends, send-backs, and recalls of timer messages (RocketMQ 5.3.2 and later)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, Self

from rmqd.codes import RequestCode
from rmqd.errors import ProtocolError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.fields import WireName, parse_integer
from rmqd.wire.headers.request_header import RequestHeader
from rmqd.wire.topics import DEFAULT_TOPIC


class SendMessageRequestHeaderV2(RequestHeader, code=RequestCode.SEND_MESSAGE_V2):
    """Sends a message. The wire names of the fields are single letters, which makes parsing faster."""

    producer_group: Annotated[str, WireName("a")]
    topic: Annotated[str, WireName("b")]
    default_topic: Annotated[str, WireName("c")] = DEFAULT_TOPIC
    default_topic_queue_nums: Annotated[int, WireName("d")] = 4
    queue_id: Annotated[int, WireName("e")]
    sys_flag: Annotated[int, WireName("f")]
    born_timestamp: Annotated[int, WireName("g")]
    flag: Annotated[int, WireName("h")]
    properties: Annotated[str | None, WireName("i")] = None
    reconsume_times: Annotated[int | None, WireName("j")] = None
    unit_mode: Annotated[bool | None, WireName("k")] = None
    max_reconsume_times: Annotated[int | None, WireName("l")] = None
    batch: Annotated[bool | None, WireName("m")] = None
    broker_name: Annotated[str | None, WireName("n")] = None


class SendBatchMessageRequestHeader(SendMessageRequestHeaderV2, code=RequestCode.SEND_BATCH_MESSAGE):
    """Sends several messages to one queue. `batch` must be True. `properties` belong to the batch, not to a message."""


_LETTERS: Final = dict(
    zip(
        "producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties "
        "reconsumeTimes unitMode maxReconsumeTimes batch".split(),
        "abcdefghijklm",
        strict=True,
    )
)
"""The letter for each long field name. Old clients use the long names, in SEND_MESSAGE (10)."""


class ReceivedSendHeader(NamedTuple):
    """The header of any kind of send, as the embedded broker reads it: quickly, and as leniently as RocketMQ."""

    topic: str
    default_topic: str | None
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool

    @classmethod
    def from_request(cls, request: RemotingCommand) -> Self:
        """Read the header of a send, whether its fields have long names or letters. Raises ProtocolError."""
        fields = request.ext_fields
        if request.code == RequestCode.SEND_MESSAGE:
            fields = {_LETTERS[name]: value for name, value in fields.items() if name in _LETTERS}
        get = fields.get
        most = get("l")
        try:
            return cls(
                fields["b"],
                get("c"),
                int(get("d") or 0),
                int(fields["e"]),
                int(fields["f"]),
                int(fields["g"]),
                int(fields["h"]),
                get("i", ""),
                int(get("j") or 0),
                get("k", "").lower() == "true",
                int(most) if most else None,
                get("m", "").lower() == "true",
            )
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"the header of a send has a missing or invalid field: {error!r:.200}") from error


class SendMessageResponseHeader(NamedTuple):
    """The position of a stored message. For a batch: comma-separated offset ids, and the first message's offset.

    The class is a tuple, because the embedded broker creates one for every message.
    """

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None

    @classmethod
    def from_ext_fields(cls, ext_fields: Mapping[str, str]) -> Self:
        """Read the header of the response to a successful send. Raises ProtocolError."""
        try:
            return cls(
                ext_fields["msgId"],
                parse_integer(ext_fields["queueId"], "queueId"),
                parse_integer(ext_fields["queueOffset"], "queueOffset"),
                ext_fields.get("transactionId"),
                ext_fields.get("batchUniqId"),
                ext_fields.get("recallHandle"),
            )
        except KeyError as error:
            raise ProtocolError(f"the response to a send has no field {error}") from error

    def ext_fields(self) -> dict[str, str]:
        fields = {"msgId": self.msg_id, "queueId": str(self.queue_id), "queueOffset": str(self.queue_offset)}
        if self.transaction_id is not None:
            fields["transactionId"] = self.transaction_id
        if self.batch_uniq_id is not None:
            fields["batchUniqId"] = self.batch_uniq_id
        if self.recall_handle is not None:
            fields["recallHandle"] = self.recall_handle
        return fields


class ConsumerSendMsgBackRequestHeader(RequestHeader, code=RequestCode.CONSUMER_SEND_MSG_BACK):
    """Asks the broker to redeliver a message later. The broker identifies the message by `offset` (in the commit log).

    With `delay_level` 0 the broker uses the level 3 + reconsume times. With -1 it dead-letters the message.
    """

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None


class RecallMessageRequestHeader(RequestHeader, code=RequestCode.RECALL_MESSAGE):
    """Recalls a timer message. `recall_handle` is from the response to its send (`wire.lite_topic.RecallHandle`)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None
