"""Lite topics (RIP-83, RocketMQ 5.5): names of queues, delivery counts in pop responses, and recall handles.

A message for a lite topic is sent to the parent topic with the property `__LITE_TOPIC`. The broker stores the message
in the parent topic, and also adds it to the queue of the lite topic. This queue has separate offsets, and the name that
`lite_topic_queue` returns. A recall handle recalls a timer message. Java: LiteUtil,
ExtraInfoUtil.parseLiteOrderCountInfo, RecallMessageHandle.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple, Self

from rmqd.errors import InvalidNameError, ProtocolError
from rmqd.wire.fields import parse_integer
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import LIGHT_QUEUE_ID, LMQ_PREFIX

BIND_TOPIC_ATTRIBUTE: Final = "lite.bind.topic"
WILDCARD_ATTRIBUTE: Final = "lite.sub.wildcard"
MODEL_ATTRIBUTE: Final = "lite.sub.model"
"""Attributes of a group: the parent topic, whether the group gets all its lite topics, and how members share them."""
SHARED_MODEL: Final = "Shared"
EXCLUSIVE_MODEL: Final = "Exclusive"

MAX_LITE_TOPIC_LENGTH: Final = 64  # maxLiteTopicLength of the gRPC proxy
LITE_TOPIC_SEPARATOR: Final = "$"


def check_lite_topic(name: str) -> None:
    """Raise InvalidNameError unless the name consists of 1 to 64 ASCII letters, digits and characters % | _ -."""
    if not name or len(name) > MAX_LITE_TOPIC_LENGTH:
        raise InvalidNameError(f"a lite topic's name must have 1 to {MAX_LITE_TOPIC_LENGTH} characters: {name!r:.100}")
    if not all(character.isascii() and (character.isalnum() or character in "%|_-") for character in name):
        raise InvalidNameError(f"a lite topic's name may contain letters, digits and % | _ - only: {name!r}")


def lite_topic_queue(parent_topic: str, lite_topic: str, broker_name: str) -> MessageQueue:
    """Return the queue of a lite topic on a broker. The broker stores offsets under this queue's topic name."""
    return MessageQueue(
        f"{LMQ_PREFIX}{LITE_TOPIC_SEPARATOR}{parent_topic}{LITE_TOPIC_SEPARATOR}{lite_topic}",
        broker_name,
        LIGHT_QUEUE_ID,
    )


def parent_topic_of(topic: str) -> str | None:
    """Return the parent topic if `topic` is the name of a lite topic's queue, else None."""
    begin = f"{LMQ_PREFIX}{LITE_TOPIC_SEPARATOR}"
    parent, separator, lite_topic = topic.removeprefix(begin).partition(LITE_TOPIC_SEPARATOR)
    return parent if topic.startswith(begin) and separator and parent and lite_topic else None


def parse_pop_counts(text: str | None, messages: int) -> list[int]:
    """Return how often each message was popped before. `text` is orderCountInfo in the response to a lite pop.

    The text has one entry per message: the number, or three words that end with the number. Raises ProtocolError.
    """
    entries = text.split(";") if text else []
    if len(entries) != messages:
        raise ProtocolError(f"orderCountInfo has {len(entries)} entries for {messages} messages: {text!r:.120}")
    return [parse_integer(entry.rpartition(" ")[2], "orderCountInfo") for entry in entries]


_VERSION: Final = "v1"
_PARTS: Final = 5


class RecallHandle(NamedTuple):
    """The handle to recall a timer message: its topic, broker, delivery time (milliseconds since 1970) and id.

    On the wire the handle is URL-safe base64 of a version and these fields, separated by spaces.
    """

    topic: str
    broker_name: str
    deliver_at_ms: int
    msg_id: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the wire text of a handle. Raises ProtocolError."""
        try:
            parts = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode().split(" ")
        except (binascii.Error, ValueError) as error:
            raise ProtocolError(f"{text!r:.120} is not a recall handle in base64: {error}") from error
        if parts[0] != _VERSION or len(parts) < _PARTS or not all(parts[:_PARTS]):
            raise ProtocolError(f"a recall handle must begin with {_VERSION} and have {_PARTS} parts: {parts!r:.120}")
        return cls(parts[1], parts[2], parse_integer(parts[3], "the time of a recall handle"), parts[4])

    def __str__(self) -> str:
        """Return the wire text of the handle, as brokers write it."""
        parts = (_VERSION, self.topic, self.broker_name, str(self.deliver_at_ms), self.msg_id)
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()
