"""Which rows go to the broker in one request. Pure.

A batch of RocketMQ has one topic and one queue, and no message in it is delayed. The broker stores each as a message of
its own. Rows of one lane stay together, in their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rmqd.spark.sink.outgoing import OutgoingRow
from rmqd.wire.topics import RETRY_PREFIX

MOST_ROWS: Final = 32
MOST_BYTES: Final = 256 * 1024  # of bodies and properties; brokers take 4 MiB unless they are set to less
HEAD_BYTES: Final = 256  # more than a message has beside its body and the row's properties


def bundles(rows: Iterable[OutgoingRow]) -> Iterator[Sequence[OutgoingRow]]:
    """All rows, in groups for a request each. Raises what `rows` raises."""
    collected: dict[object, list[OutgoingRow]] = {}
    sizes: dict[object, int] = {}
    for row in rows:
        if not _may_share(row):
            if before := collected.pop(row.lane, None) if row.lane is not None else None:
                yield before  # of the same lane, and to be stored first
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
