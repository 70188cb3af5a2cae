"""Slices of one buffer as Arrow arrays, without a Python object for each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

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
