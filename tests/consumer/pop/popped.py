"""Blocks of popped messages, as in the response to a pop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.receipt_handle import PopHandle, RetryFlag
from tests.consumer.blocks import block_of
from tests.consumer.groups import TOPIC
from tests.consumer.scripted_broker import BROKER

POPPED: Final = MessageQueue(TOPIC, BROKER, 0)
INVISIBLE_SECONDS: Final = 60.0


def popped(offsets: Iterable[int], due: float, *, broker_name: str = BROKER) -> PopBlock:
    """The messages that one pop took from one queue; visible to other members at `due` (monotonic)."""
    reply = block_of(offsets, POPPED)
    first = reply.messages[0].queue_offset
    handle = PopHandle(first, 1000, round(INVISIBLE_SECONDS * 1000), 3, RetryFlag.NORMAL, broker_name, 0, first)
    block = PopBlock(reply.data, POPPED, TOPIC, handle, due, "")
    block.messages = reply.messages
    for message in block.messages:
        message.block = block
    block.unfinished, block.size_bytes = len(block.messages), reply.size_bytes
    return block
