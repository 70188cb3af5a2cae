"""Unpacks batches that brokers store as one record (queue.type=BatchCQ), with the same result as for handlers."""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqd.spark.source.slices import Ints
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages

_NO_QUEUE: Final = MessageQueue("", "", -1)


def unwrapped(data: bytes, starts: Ints, ends: Ints, batches: frozenset[int]) -> tuple[bytes, Ints, Ints]:
    """Replace the rows in `batches` by the members of these batches. Return (records, start of each, original row).

    A batch that cannot be unpacked stays as it is; `why_closed` returns the reason.
    """
    parts: list[bytes] = []
    rows: list[int] = []
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        found = _records(data[start:end]) if row in batches else [data[start:end]]
        parts += found
        rows += [row] * len(found)
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    return b"".join(parts), np.cumsum(sizes) - sizes, np.array(rows, np.int64)


def why_closed(record: bytes) -> str:
    """Return why a well-framed record is unreadable: its batch cannot be unpacked, or its flags are unknown."""
    block = decode_messages(record, _NO_QUEUE)
    return block.corrupt[0].reason if block.corrupt else "it contains a batch of an unknown format"


def _records(record: bytes) -> list[bytes]:
    block = decode_messages(record, _NO_QUEUE)
    return [record] if block.corrupt else [message.record for message in block.messages]
