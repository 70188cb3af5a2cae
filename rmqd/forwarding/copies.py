"""What becomes of a message when it is passed on: the copy that is sent, and what it has to stay behind."""

from __future__ import annotations

from typing import Final

from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import SHARDING_KEY, UNIQ_KEY

HOPS: Final = "RMQD_HOPS"
"""The property that counts how often a message was passed on."""


MOST_HOPS: Final = 9999
"""Longer numbers count as this one: it is above any `max_hops`, and Python refuses to read numbers of any length."""


def hops(message: Message) -> int:
    """How often the message was passed on before; 0 where its property says nothing that is a number."""
    said = message.properties.get(HOPS, "")
    if not (said.isascii() and said.isdigit()):
        return 0
    return int(said) if len(said) <= len(str(MOST_HOPS)) else MOST_HOPS


def copy_of(message: Message, topic: str) -> OutgoingMessage:
    """The message for another topic: with its id, its time of birth and its own properties, and one hop more."""
    return OutgoingMessage(
        topic,
        bytes(message.body),
        properties={**message.own_properties, HOPS: str(hops(message) + 1), UNIQ_KEY: message.msg_id},
        flag=message.flag,
        born_timestamp_ms=message.born_timestamp,
    )


def order_key(message: Message, queue: MessageQueue, order_by: str) -> str | None:
    """What the message has in common with those whose order is kept; None where nothing is to be kept."""
    if order_by == "queue":
        return f"{queue.topic}@{queue.broker_name}@{queue.queue_id}"
    if order_by == "keys":
        return message.keys or None
    name = SHARDING_KEY if order_by == "sharding_key" else order_by.removeprefix("property:")
    return message.properties.get(name) or None
