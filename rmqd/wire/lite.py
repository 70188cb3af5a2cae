"""Lite topics (RIP-83, RocketMQ 5.5): what their queues are called, and what a reply to a pop of them says.

A message for a lite topic is sent to its parent topic with the property `__LITE_TOPIC`. The broker stores it in the
parent topic, and puts it into a queue of the lite topic's own besides. This queue is known by the name that `queue_of`
makes, and has offsets of its own. Java: LiteUtil, ExtraInfoUtil.parseLiteOrderCountInfo.
"""

from __future__ import annotations

from typing import Final

from rmqd.errors import InvalidNameError, ProtocolError
from rmqd.wire.fields import parse_integer
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import LIGHT_QUEUE_ID, LMQ_PREFIX

BIND_TOPIC: Final = "lite.bind.topic"
WILDCARD: Final = "lite.sub.wildcard"
MODEL: Final = "lite.sub.model"
"""Attributes of a group: its parent topic, whether it wants all lite topics there, and how its members have them."""
SHARED: Final = "Shared"
EXCLUSIVE: Final = "Exclusive"

MAX_LITE_TOPIC_LENGTH: Final = 64  # the gRPC proxy's maxLiteTopicLength
SEPARATOR: Final = "$"
_DISPATCH_SEPARATOR: Final = ","


def check_lite_topic(name: str) -> None:
    """Raise InvalidNameError for a name that brokers could not keep apart from another."""
    if not name or len(name) > MAX_LITE_TOPIC_LENGTH:
        raise InvalidNameError(f"a lite topic's name must have 1 to {MAX_LITE_TOPIC_LENGTH} characters: {name!r:.100}")
    if not all(character.isascii() and (character.isalnum() or character in "%|_-") for character in name):
        raise InvalidNameError(f"a lite topic's name may contain letters, digits and % | _ - only: {name!r}")


def queue_of(parent_topic: str, lite_topic: str, broker_name: str) -> MessageQueue:
    """The queue of a lite topic on a broker, by the name under which brokers keep its offsets."""
    return MessageQueue(f"{LMQ_PREFIX}{SEPARATOR}{parent_topic}{SEPARATOR}{lite_topic}", broker_name, LIGHT_QUEUE_ID)


def parent_of(topic: str) -> str | None:
    """The parent topic, where `topic` is the name of a lite topic's queue; None for any other."""
    begin = f"{LMQ_PREFIX}{SEPARATOR}"
    parent, separator, lite_topic = topic.removeprefix(begin).partition(SEPARATOR)
    return parent if topic.startswith(begin) and separator and parent and lite_topic else None


def lite_offset(queue: MessageQueue, dispatch: str | None, offsets: str | None) -> int:
    """The offset of a message in a lite topic's queue, from its properties INNER_MULTI_DISPATCH and _QUEUE_OFFSET.

    Raises ProtocolError where they do not name the queue.
    """
    names = (dispatch or "").split(_DISPATCH_SEPARATOR)
    numbers = (offsets or "").split(_DISPATCH_SEPARATOR)
    if queue.topic not in names or len(names) != len(numbers):
        raise ProtocolError(f"a message of {queue.topic} says that it lies in {dispatch!r:.200} at {offsets!r:.80}")
    return parse_integer(numbers[names.index(queue.topic)], "the offset in a lite topic")


def parse_tries(text: str | None, messages: int) -> list[int]:
    """How often each of so many messages was popped before: the ext field orderCountInfo of a reply to a lite pop.

    An entry is the number alone, or at the end of three words. Raises ProtocolError.
    """
    entries = text.split(";") if text else []
    if len(entries) != messages:
        raise ProtocolError(f"orderCountInfo has {len(entries)} entries for {messages} messages: {text!r:.120}")
    return [parse_integer(entry.rpartition(" ")[2], "orderCountInfo") for entry in entries]
