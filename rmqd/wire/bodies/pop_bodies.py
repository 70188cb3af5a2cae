"""Bodies of POP: assignments that the broker makes, acknowledgements of many messages at once, lite subscriptions."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from rmqd.errors import ProtocolError
from rmqd.wire import fields
from rmqd.wire.bodies.json_body import Body, WireOptions
from rmqd.wire.fields import WireName
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.receipt_handle import RetryFlag

_MAX_BITS_BYTES: Final = 65536
"""A limit for memory. Real bit sets are far smaller, because a pop scans only some hundreds of offsets."""


class MessageRequestMode(StrEnum):
    """How a group reads a topic: by pulls or by pops. Operators set it on each broker (SET_MESSAGE_REQUEST_MODE)."""

    PULL = "PULL"
    POP = "POP"


class QueryAssignmentRequestBody(Body):
    """The body of QUERY_ASSIGNMENT (400): asks which queues of a topic a member should read, by pulls or pops."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: Annotated[str, WireOptions(absent="")] = "AVG"
    message_model: Annotated[str, WireOptions(absent="")] = "CLUSTERING"


def _read_mode(value: object, what: str) -> MessageRequestMode:
    mode = fields.as_text(value, what)
    try:
        return MessageRequestMode(mode)
    except ValueError:
        raise ProtocolError(
            f"a group's mode for a topic must be PULL or POP, not {mode!r:.80}; set it with mqadmin setConsumeMode"
        ) from None


class MessageQueueAssignment(Body, called="an assignment", order=True):
    """A queue that a member should read. The queue id -1 means any queue of the broker, and is only valid for pops."""

    queue: Annotated[MessageQueue, WireName("messageQueue")]
    mode: Annotated[MessageRequestMode, WireOptions(read=_read_mode)] = MessageRequestMode.PULL


class QueryAssignmentResponseBody(Body):
    """The response to QUERY_ASSIGNMENT (400): a member's assignments.

    `assignments` is None if the broker does not know the member yet. Then the body may be empty.
    """

    assignments: Annotated[tuple[MessageQueueAssignment, ...] | None, WireName("messageQueueAssignments")] = None

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body. Raises ProtocolError."""
        return cls._from_object(fields.body_object(body)) if body else cls()


class BatchAck(Body, called="acks"):
    """The acknowledgement of messages of one queue from one pop: the common parts of their handles, and their offsets.

    The methods are hand-written, because the offsets depend on `start_offset`, and acknowledgements are frequent.
    """

    consumer_group: str
    topic: str
    retry: RetryFlag
    start_offset: int
    queue_id: int
    revive_queue_id: int
    pop_time: int
    invisible_time: int
    offsets: tuple[int, ...]
    """The queue offsets of the messages. On the wire they are a bit set that begins at `start_offset`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object. `topic` is the subscribed topic, even if a pop retry topic stores the messages."""
        return {
            "b": _bits_to_base64(tuple(offset - self.start_offset for offset in self.offsets)),
            "c": self.consumer_group,
            "it": self.invisible_time,
            "pt": self.pop_time,
            "q": self.queue_id,
            "r": str(int(self.retry)),
            "rq": self.revive_queue_id,
            "so": self.start_offset,
            "t": self.topic,
        }

    @classmethod
    def _from_object(cls, data: dict[Any, Any]) -> Self:
        start = fields.required_integer(data, "so")
        return cls(
            fields.required_text(data, "c"),
            fields.required_text(data, "t"),
            RetryFlag.parse(fields.required_text(data, "r")),
            start,
            fields.required_integer(data, "q"),
            fields.required_integer(data, "rq"),
            fields.required_integer(data, "pt"),
            fields.required_integer(data, "it"),
            tuple(start + bit for bit in _base64_to_bits(fields.required_text(data, "b"))),
        )


class BatchAckMessageRequestBody(Body):
    """The body of BATCH_ACK_MESSAGE (200151): acknowledges popped messages of one broker."""

    broker_name: Annotated[str, WireOptions(absent="")]
    acks: tuple[BatchAck, ...]


def _bits_to_base64(bits: tuple[int, ...]) -> str:
    number = 0
    for bit in bits:
        number |= 1 << bit
    return base64.b64encode(number.to_bytes((number.bit_length() + 7) // 8, "little")).decode()


def _base64_to_bits(text: str) -> tuple[int, ...]:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"the bits of a batch of acknowledgements are not base64: {error}") from error
    if len(data) > _MAX_BITS_BYTES:
        raise ProtocolError(
            f"the bits of a batch of acknowledgements have {len(data)} bytes; expected at most {_MAX_BITS_BYTES}"
        )
    return tuple(8 * index + bit for index, byte in enumerate(data) for bit in range(8) if byte >> bit & 1)


class LiteSubscriptionAction(StrEnum):
    """A change of a client's lite topics. PARTIAL actions change the listed topics, COMPLETE actions the whole set."""

    PARTIAL_ADD = "PARTIAL_ADD"
    PARTIAL_REMOVE = "PARTIAL_REMOVE"
    COMPLETE_ADD = "COMPLETE_ADD"
    COMPLETE_REMOVE = "COMPLETE_REMOVE"


def _read_action(value: object, what: str) -> LiteSubscriptionAction:
    action = fields.as_text(value, what)
    try:
        return LiteSubscriptionAction(action)
    except ValueError:
        expected = ", ".join(LiteSubscriptionAction)
        raise ProtocolError(f"{action!r:.80} is not an action of a lite subscription; expected {expected}") from None


class LiteSubscription(Body, called="a lite subscription"):
    """One client's lite topics. Brokers drop them after three minutes (liteSubscriptionCheckTimeoutMills)."""

    action: Annotated[LiteSubscriptionAction, WireOptions(read=_read_action)]
    client_id: str
    group: str
    topic: str
    lite_topics: Annotated[tuple[str, ...], WireName("liteTopicSet")] = ()
    version: int = 0
    offset_option: Annotated[Mapping[str, Any] | None, WireOptions(read=fields.as_object)] = None
    """The group's start offset in added lite topics. rmqd does not interpret it."""


class LiteSubscriptionCtlRequestBody(Body):
    subscriptions: Annotated[tuple[LiteSubscription, ...], WireName("subscriptionSet")]
