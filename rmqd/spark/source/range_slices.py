"""Resolves the start and end options to offsets: ends of queues, committed offsets, and times.

Slices of one buffer as Arrow arrays, without a Python object for each.

The messages that a bounded read can skip because of SQL conditions: by queue, offset, store time or tag. No I/O.

Spark applies the conditions itself to the result. So reading more than necessary is harmless, and never less is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.errors import RmqdError
from rmqd.spark.session.queue_range import Filter
from rmqd.spark.session.spark_cluster import Cluster, everyone
from rmqd.spark.source.source_offsets import EARLIEST, LATEST, Bound
from rmqd.wire.bodies.heartbeat_data import EXPRESSION_TAG, SUBSCRIPTION_ALL
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

if TYPE_CHECKING:
    from rmqd.spark.source.source_options import SourceOptions


def starts_of(
    cluster: Cluster, options: SourceOptions, default: Bound, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, int]:
    """Return the start offset of each queue; `default` applies if no option sets it. Raises RmqdError like `resolve`.

    Unless set, retries are read from the first one, because all of them belong to this group.
    """
    bound, wanted = options.starting or default, set(queues)
    retries = {queue for queue in wanted if queue.topic == options.retry_topic}
    by_retries = {queue: bound.by_queue[queue] for queue in retries & bound.by_queue.keys()}
    by_others = {queue: value for queue, value in bound.by_queue.items() if queue not in retries}
    found = resolve(cluster, options, replace(bound, by_queue=by_others), wanted - retries, options.fallback)
    return found | resolve(cluster, options, replace(bound, by_queue=by_retries), retries, Bound("earliest"))


def resolve(
    cluster: Cluster, options: SourceOptions, bound: Bound, queues: Iterable[MessageQueue], otherwise: Bound
) -> dict[MessageQueue, int]:
    """Return an offset for each queue; `otherwise` is for queues that the bound does not cover.

    Raises RmqdError if a broker does not answer, or the bound names an unknown queue.
    """
    wanted = sorted(queues)
    unknown = sorted(set(bound.by_queue) - set(wanted))
    if unknown:
        raise RmqdError(f"offsets are given for {unknown[0]}, which is not one of the queues to read")
    found: dict[MessageQueue, int] = {}
    if bound.kind == "earliest":
        found = everyone(cluster.min_offsets(wanted))
    elif bound.kind == "latest":
        found = everyone(cluster.max_offsets(wanted))
    elif bound.kind == "committed":
        committed = everyone(cluster.committed(options.group, wanted))
        found = {queue: offset for queue, offset in committed.items() if offset is not None}
    elif bound.kind == "offsets":
        found = _named(cluster, bound.by_queue)
    elif bound.kind == "timestamp":
        found = _at(cluster, options, dict.fromkeys(wanted, bound.timestamp_ms))
    else:
        found = _at(cluster, options, bound.by_queue)
    missing = [queue for queue in wanted if queue not in found]
    if missing:
        found |= resolve(cluster, options, otherwise, missing, otherwise)
    return found


def _named(cluster: Cluster, by_queue: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    lows = everyone(cluster.min_offsets(queue for queue, offset in by_queue.items() if offset == EARLIEST))
    highs = everyone(cluster.max_offsets(queue for queue, offset in by_queue.items() if offset == LATEST))
    return {**by_queue, **lows, **highs}


def _at(cluster: Cluster, options: SourceOptions, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    found = everyone(cluster.offsets_at(times_ms))
    if options.must_find_timestamp:
        highs = everyone(cluster.max_offsets(times_ms))
        for queue, offset in sorted(found.items()):
            if offset >= highs[queue]:
                raise RmqdError(
                    f"{queue} has no message stored at or after {times_ms[queue]} (milliseconds since 1970); set "
                    "startingOffsetsByTimestampStrategy=latest to start such a queue at its end"
                )
    return found


Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

Array = np.ndarray[tuple[int], np.dtype[Any]]

Octets = np.ndarray[tuple[int, int], np.dtype[np.uint8]]

_INT32: Final = np.int32


def gather(data: Any, what: np.dtype[Any], places: Ints) -> Array:
    """Return the items at arbitrary byte positions of the buffer, by treating every byte as the start of an item."""
    if not len(places):
        return np.empty(0, what)
    # as opaque bytes, which numpy copies ten times as fast as fields
    whole: Array = np.ndarray((len(data) - what.itemsize + 1,), f"V{what.itemsize}", data, strides=(1,))
    return whole[places].view(what)


def column(table: Any, start: int, end: int, size: int) -> Array:
    """Return the bytes from `start` to before `end` of each row of a table, without a copy; a row has `size` bytes."""
    return np.ndarray((len(table) // size,), f"V{end - start}", table, start, (size,))


def steps(runs: list[int]) -> Ints:
    """Return the positions in consecutive runs. The list has three numbers for each: first position, count, step."""
    firsts, counts, distances = np.array(runs, np.int64).reshape(-1, 3).T
    before = np.cumsum(counts) - counts
    places: Ints = np.repeat(firsts - before * distances, counts)
    places += np.arange(len(places)) * np.repeat(distances, counts)
    return places


def common_value(data: Any, starts: Ints, ends: Ints) -> bytes | None:
    """Return the bytes from each start to before its end, if they are all equal, else None."""
    if not len(starts) or (ends - starts != ends[0] - starts[0]).any():
        return None
    first = bytes(memoryview(data)[starts[0] : ends[0]])
    if first and gather(data, np.dtype(f"V{len(first)}"), starts).tobytes() != first * len(starts):
        return None
    return first


def cut(data: Any, starts: Ints, ends: Ints) -> pa.Array:
    """Return the bytes from each start to before its end as `binary`. `data` is any buffer.

    Each start must not be before the previous end. Slices of equal length and distance, as in similar messages, are
    columns of a table, which numpy copies twice as fast as Arrow. For other slices, Arrow's arrays have no gaps between
    their values; so an array is created over both wanted and unwanted bytes in turn, and Arrow copies every second
    value.
    """
    rows = len(starts)
    if not rows:
        return pa.array([], pa.binary())
    if (step := _common(np.diff(starts))) and (size := _common(ends - starts)):
        table: Octets = np.ndarray((rows, size), np.uint8, data, int(starts[0]), (step, 1))
        return of_equal_length(table, pa.binary())
    bounds = np.empty(2 * rows, _INT32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    laid = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return laid.take(pa.array(np.arange(0, 2 * rows, 2, dtype=_INT32)))


def parts(values: pa.Array) -> Sequence[bytes | memoryview]:
    """Return the bytes of each value of a `binary` array without nulls and without an offset into its buffers."""
    _, bounds_buffer, data = values.buffers()
    bounds: Ints = np.frombuffer(bounds_buffer, _INT32, len(values) + 1)
    if size := _common(np.diff(bounds)):
        found: list[bytes] = np.frombuffer(data, f"V{size}", len(values)).tolist()
        return found
    view = memoryview(data or b"")
    return [view[start:end] for start, end in pairwise(bounds.tolist())]


def texts(values: pa.Array) -> pa.Array:
    """Convert bytes to strings, with U+FFFD in place of invalid UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values.to_pylist()], pa.string())


def of_equal_length(octets: Octets, kind: pa.DataType) -> pa.Array:
    """Return an array with one value for each row, as `binary` or as ASCII strings."""
    rows, length = octets.shape
    offsets = np.arange(0, (rows + 1) * length, length, dtype=_INT32) if length else np.zeros(rows + 1, _INT32)
    whole = pa.py_buffer(np.ascontiguousarray(octets))
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), whole])


@lru_cache(maxsize=32)
def repeated(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    """Return the same value in each row. Cached, because most batches have as many rows as the previous batch."""
    return pa.repeat(pa.scalar(value, kind), rows)


def _common(values: Ints) -> int:
    """Return the number that all values are equal to; 0 if they differ or there are none."""
    return int(values[0]) if len(values) and (values == values[0]).all() else 0


# brokers search by time as if messages were stored in order of time, but their clocks may have been set back
CLOCK_SLACK_MS: Final = 5000
BY_QUEUE: Final = ("topic", "source_topic", "broker", "queue_id")


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Conditions that all hold. Lower bounds are inclusive, upper bounds exclusive; None means no bound."""

    among: Mapping[str, frozenset[object]] = field(default_factory=dict)
    """The only possible values, by column."""
    offsets: tuple[int | None, int | None] = None, None
    stored_ms: tuple[int | None, int | None] = None, None

    def one_of(self, column: str, values: Collection[object]) -> Narrowing:
        """Add the condition that the column has one of these values."""
        if column == "queue_offset":
            numbers = [value for value in values if isinstance(value, int)]
            return self.at_least(column, min(numbers)).at_most(column, max(numbers)) if numbers else self
        if column not in (*BY_QUEUE, "tags"):
            return self
        allowed = frozenset(values) & self.among.get(column, frozenset(values))
        return replace(self, among={**self.among, column: allowed})

    def at_least(self, column: str, value: object) -> Narrowing:
        """Add the condition that the column has this value or a higher one."""
        if column == "queue_offset" and isinstance(value, int):
            return replace(self, offsets=(_higher(self.offsets[0], value), self.offsets[1]))
        if column == "store_timestamp" and isinstance(value, datetime) and value.tzinfo:
            return replace(self, stored_ms=(_higher(self.stored_ms[0], _ms(value) - CLOCK_SLACK_MS), self.stored_ms[1]))
        return self

    def at_most(self, column: str, value: object) -> Narrowing:
        """Add the condition that the column has this value or a lower one."""
        if column == "queue_offset" and isinstance(value, int):
            return replace(self, offsets=(self.offsets[0], _lower(self.offsets[1], value + 1)))
        if column == "store_timestamp" and isinstance(value, datetime) and value.tzinfo:
            end = _ms(value) + 1 + CLOCK_SLACK_MS
            return replace(self, stored_ms=(self.stored_ms[0], _lower(self.stored_ms[1], end)))
        return self

    def has(self, queue: MessageQueue) -> bool:
        """Return whether a queue can have matching messages."""
        values = {"source_topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
        if not is_retry_topic(queue.topic):  # its messages belong to other topics
            values["topic"] = queue.topic
        return all(value in self.among[column] for column, value in values.items() if column in self.among)

    def cut(self, low: int, high: int) -> tuple[int, int]:
        """Remove offsets outside the bounds from a range."""
        return max(low, self.offsets[0] or 0), high if self.offsets[1] is None else min(high, self.offsets[1])

    def cut_by_time(self, span: tuple[int, int], found: tuple[int | None, int | None]) -> tuple[int, int]:
        """Remove too old and too young messages from a range; `found` are the broker's offsets for the times."""
        (low, high), (first, end) = span, found
        return max(low, first or 0), high if end is None else min(high, end)

    def filter(self, given: Filter) -> Filter:
        """Return a filter by tags for the broker, if none is given."""
        tags = self.among.get("tags")
        if tags is None or not given.takes_all or not all(map(_is_tag, tags)):
            return given
        return Filter(EXPRESSION_TAG, " || ".join(sorted(map(str, tags)))) if tags else given


def _is_tag(value: object) -> bool:
    return (
        isinstance(value, str) and value not in ("", SUBSCRIPTION_ALL) and "|" not in value and value == value.strip()
    )


def _ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def _higher(known: int | None, other: int) -> int:
    return other if known is None else max(known, other)


def _lower(known: int | None, other: int) -> int:
    return other if known is None else min(known, other)
