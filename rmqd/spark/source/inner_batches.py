"""Batches that brokers store as one record (queue.type=BatchCQ), taken apart for columns as they are for handlers."""

from __future__ import annotations

from typing import Final

import numpy as np

from rmqd.spark.source.slices import Ints
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages

_NO_QUEUE: Final = MessageQueue("", "", -1)


def unwrapped(data: bytes, starts: Ints, ends: Ints, batches: frozenset[int]) -> tuple[bytes, Ints, Ints]:
    """(records, where each begins, the row that it was) with the members of batches in place of the rows in `batches`.

    A batch that cannot be taken apart stays as it is; `why_closed` says why.
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
    """Why a record whose frame holds cannot be read: its batch cannot be taken apart, or its flags are not known."""
    block = decode_messages(record, _NO_QUEUE)
    return block.corrupt[0].reason if block.corrupt else "it holds a batch of which nothing is known"


def _records(record: bytes) -> list[bytes]:
    block = decode_messages(record, _NO_QUEUE)
    return [record] if block.corrupt else [message.record for message in block.messages]
