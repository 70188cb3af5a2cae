"""Messages and batches for a handler's tests, made of the bytes that a broker would send."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

from rmqd import Batch, Message, MessageQueue
from rmqd.wire.message import decode_messages
from rmqd.wire.properties import format_properties

QUEUE = MessageQueue("orders", "broker-a", 3)


def make_message(
    body: bytes = b"",
    *,
    keys: str | None = None,
    tags: str | None = None,
    queue_offset: int = 0,
    properties: Mapping[str, str] | None = None,
) -> Message:
    """A message of the queue `QUEUE`."""
    named = {"KEYS": keys, "TAGS": tags, "UNIQ_KEY": f"7F00000100002A139A55{queue_offset:012X}"}
    given = {**(properties or {}), **{name: value for name, value in named.items() if value is not None}}
    packed, topic, host = format_properties(given).encode(), QUEUE.topic.encode(), bytes([127, 0, 0, 1, 0, 0, 48, 57])
    tail = struct.pack(">i", len(body)) + body + bytes([len(topic)]) + topic + struct.pack(">h", len(packed)) + packed
    head = struct.pack(
        ">IIiiqqiq8sq8siq",
        *(0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF, QUEUE.queue_id, 0, queue_offset, queue_offset * 1000, 0),
        *(1_767_225_600_000, host, 1_767_225_600_005, host, 0, 0),
    )
    record = struct.pack(">i", 4 + len(head) + len(tail)) + head + tail
    return decode_messages(record, QUEUE).messages[0]


def make_batch(*messages: Message) -> Batch:
    """A batch of these messages."""
    return Batch(list(messages), QUEUE)
