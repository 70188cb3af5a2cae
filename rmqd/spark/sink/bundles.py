"""Groups rows into requests to the broker. No I/O.

A RocketMQ batch has one topic and one queue, and none of its messages is delayed. The broker stores each message
separately. Rows of one lane stay together, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rmqd.spark.sink.outgoing import OutgoingRow
from rmqd.wire.topics import RETRY_PREFIX

MOST_ROWS: Final = 32
MOST_BYTES: Final = 256 * 1024  # bodies and properties; brokers accept 4 MiB unless configured lower
HEAD_BYTES: Final = 256  # upper limit for a message without its body and the row's properties


def bundles(rows: Iterable[OutgoingRow]) -> Iterator[Sequence[OutgoingRow]]:
    """Yield all rows, in groups for one request each. Raises errors of `rows`."""
    collected: dict[object, list[OutgoingRow]] = {}
    sizes: dict[object, int] = {}
    for row in rows:
        if not _may_share(row):
            if before := collected.pop(row.lane, None) if row.lane is not None else None:
                yield before  # earlier rows of the same lane must be stored first
            yield [row]
            continue
        key = (row.message.topic, None) if row.lane is None else row.lane
        size = _size(row)
        if key in collected and (len(collected[key]) == MOST_ROWS or sizes[key] + size > MOST_BYTES):
            yield collected.pop(key)
        if key not in collected:
            collected[key], sizes[key] = [], 0
        collected[key].append(row)
        sizes[key] += size
    yield from collected.values()


def _may_share(row: OutgoingRow) -> bool:
    message = row.message
    return not (message.delay_level or message.is_timed or message.topic.startswith(RETRY_PREFIX))


def _size(row: OutgoingRow) -> int:
    message = row.message
    properties = sum(len(name) + len(value) for name, value in message.properties.items())
    return HEAD_BYTES + len(message.body) + 4 * (properties + len(message.keys) + len(message.tags))
