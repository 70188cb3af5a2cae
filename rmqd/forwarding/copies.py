"""The copy of a message that is forwarded, its hop count and its order key."""

from __future__ import annotations

from typing import Final

from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import SHARDING_KEY, UNIQ_KEY

HOPS: Final = "RMQD_HOPS"
"""The property that counts how often a message was forwarded."""


MOST_HOPS: Final = 9999
"""Higher numbers count as this one. It is above any `max_hops`, and Python limits the digits that `int` parses."""


def hops(message: Message) -> int:
    """Return how often the message was forwarded before; 0 if its property is not a number."""
    said = message.properties.get(HOPS, "")
    if not (said.isascii() and said.isdigit()):
        return 0
    return int(said) if len(said) <= len(str(MOST_HOPS)) else MOST_HOPS


def copy_of(message: Message, topic: str) -> OutgoingMessage:
    """Return the message for another topic, with its id, born time and own properties, and one more hop."""
    return OutgoingMessage(
        topic,
        bytes(message.body),
        properties={**message.own_properties, HOPS: str(hops(message) + 1), UNIQ_KEY: message.msg_id},
        flag=message.flag,
        born_timestamp_ms=message.born_timestamp,
    )


def order_key(message: Message, queue: MessageQueue, order_by: str) -> str | None:
    """Return the key that this message shares with all messages that must stay in order; None if it needs no order."""
    if order_by == "queue":
        return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"
    if order_by == "keys":
        return message.keys or None
    name = SHARDING_KEY if order_by == "sharding_key" else order_by.removeprefix("property:")
    return message.properties.get(name) or None
