"""Light message queues (LMQ): queues such as `%LMQ%room-7`, over messages that are stored in other topics.

A message that names such queues in its property INNER_MULTI_DISPATCH is stored once, in its own topic. Brokers with
`enableLmq` and `enableMultiDispatch` also enter it into each of these queues. They write its offsets there into the
property INNER_MULTI_QUEUE_OFFSET, in the same order. A pull of such a queue returns the stored records, with the topic,
queue id and offset of the other topic in their heads. (Java: `LmqDispatch`, and `MQClientAPIImpl` for pops.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rmqd.errors import ProtocolError
from rmqd.wire.messages.message import CorruptMessage, MessageBlock
from rmqd.wire.messages.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET

SEPARATOR: Final = ","


def offset_in(name: str, properties: Mapping[str, str]) -> int:
    """Return a message's offset in a light message queue. Raises ProtocolError if its properties do not have it."""
    names = properties.get(INNER_MULTI_DISPATCH, "").split(SEPARATOR)
    offsets = properties.get(INNER_MULTI_QUEUE_OFFSET, "").split(SEPARATOR)
    if name not in names:
        raise ProtocolError(f"its {INNER_MULTI_DISPATCH} does not contain {name}")
    if len(offsets) != len(names) or not offsets[names.index(name)].isdecimal():
        raise ProtocolError(f"its {INNER_MULTI_QUEUE_OFFSET} has no offset for {name}")
    return int(offsets[names.index(name)])


def count_by_light_queue(block: MessageBlock) -> None:
    """Give the messages of a pull their offsets in the pulled queue."""
    name, messages = block.message_queue.topic, block.messages
    block.messages, block.runs, following = [], 0, -1
    for message in messages:
        try:
            message.queue_offset = offset_in(name, message.stored_properties)
        except ProtocolError as error:
            block.corrupt.append(CorruptMessage(message, str(error)))
            continue
        block.runs += message.queue_offset != following
        following = message.queue_offset + 1
        block.messages.append(message)
