"""Replies to pulls, as the wire decodes them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.message import MessageBlock

QUEUE = MessageQueue("t1", "a", 0)


def block_of(
    offsets: Iterable[int],
    queue: MessageQueue = QUEUE,
    *,
    body: bytes = b"x",
    store_timestamp: int = 0,
    properties: Mapping[str, str] | None = None,
) -> MessageBlock:
    """A reply with one message at each offset."""
    message = StoredMessage(
        topic=queue.topic,
        queue_id=queue.queue_id,
        body=body,
        store_timestamp=store_timestamp,
        properties=properties or {},
    )
    return decode_messages(b"".join(encode_message(replace(message, queue_offset=at)) for at in offsets), queue)


def keyed_block(start: int, keys: Iterable[str], queue: MessageQueue = QUEUE) -> MessageBlock:
    """A reply with one message for each key, starting at an offset; an empty text means no key."""
    messages = [
        StoredMessage(
            topic=queue.topic,
            queue_id=queue.queue_id,
            body=b"x",
            store_timestamp=1,
            properties={"KEYS": key} if key else {},
            queue_offset=at,
        )
        for at, key in enumerate(keys, start)
    ]
    return decode_messages(b"".join(map(encode_message, messages)), queue)


def corrupted(record: bytes, body: bytes) -> bytes:
    """A stored record whose body was changed after the CRC was computed; its framing is valid."""
    at = record.rindex(body)
    changed = bytes([body[0] ^ 0xFF]) + body[1:]
    assert zlib.crc32(changed) != zlib.crc32(body)
    return record[:at] + changed + record[at + len(body) :]


def with_bit_flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    """The same bytes with one bit of the byte `at` flipped."""
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)
