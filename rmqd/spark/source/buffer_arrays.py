"""Converts slices of a buffer to Arrow arrays, without a Python object for each slice. Splits messages' properties.

Messages of one producer usually have the same property names in the same order. In this case the names are decoded
only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.wire.messages.properties import ENTRY_END, KEY_END, parse_properties

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]

Array = np.ndarray[tuple[int], np.dtype[Any]]

Octets = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


def items_at_positions(data: Any, item_type: np.dtype[Any], positions: Ints) -> Array:
    """Return the items at arbitrary byte positions of the buffer, by treating every byte as the start of an item."""
    if not len(positions):
        return np.empty(0, item_type)
    # numpy copies opaque bytes ten times as fast as items with fields
    whole: Array = np.ndarray((len(data) - item_type.itemsize + 1,), f"V{item_type.itemsize}", data, strides=(1,))
    return whole[positions].view(item_type)


def true_offsets(offsets: Sequence[int], low: int, end: int) -> list[int]:
    """Return the true offsets of a response's messages, some of which contradict the others, as in `pull_walk`.

    The response is to a pull at `low`, and has the next begin offset `end`. A batch may begin before `low`. Return
    nothing if the true offsets are unknown.
    """
    true: list[int] = []
    at = low
    for offset, following in zip(offsets, [*offsets[1:], end], strict=True):
        if offset < low and offset + 1 == following:
            true.append(offset)
            continue
        is_wrong = not at <= offset < end or at <= following <= offset
        if is_wrong and (at >= end or (true and at == low)):
            return []
        true.append(at if is_wrong else offset)
        at = true[-1] + 1
    return true if true != [*offsets] else []


def byte_column(table: Any, start: int, end: int, size: int) -> Array:
    """Return bytes `start` to before `end` of each row in `table`, without copying them. A row has `size` bytes."""
    return np.ndarray((len(table) // size,), f"V{end - start}", table, start, (size,))


def positions_of_runs(runs: list[int]) -> Ints:
    """Return the positions in all runs. `runs` has three numbers for each run: first position, count, distance."""
    firsts, counts, distances = np.array(runs, np.int64).reshape(-1, 3).T
    before = np.cumsum(counts) - counts
    places: Ints = np.repeat(firsts - before * distances, counts)
    places += np.arange(len(places)) * np.repeat(distances, counts)
    return places


def common_slice(data: Any, starts: Ints, ends: Ints) -> bytes | None:
    """Return the bytes from each start to before its end if all these slices are equal, else None."""
    if not len(starts) or (ends - starts != ends[0] - starts[0]).any():
        return None
    first = bytes(memoryview(data)[starts[0] : ends[0]])
    if first and items_at_positions(data, np.dtype(f"V{len(first)}"), starts).tobytes() != first * len(starts):
        return None
    return first


def slice_bytes(data: Any, starts: Ints, ends: Ints) -> pa.Array:
    """Return the slices of a buffer from each start to before its end, as an Arrow array of `binary`.

    Slices must be in order and must not overlap. Slices of equal length and distance, as in similar messages, form a
    table, which numpy copies twice as fast as Arrow. For other slices, Arrow copies every second value of an array
    that alternates between the slices and the bytes between them, because the values of an Arrow array are adjacent.
    """
    rows = len(starts)
    if not rows:
        return pa.array([], pa.binary())
    if (step := _common(np.diff(starts))) and (size := _common(ends - starts)):
        table: Octets = np.ndarray((rows, size), np.uint8, data, int(starts[0]), (step, 1))
        return array_of_rows(table, pa.binary())
    bounds = np.empty(2 * rows, np.int32)
    bounds[0::2] = starts
    bounds[1::2] = ends
    laid = pa.Array.from_buffers(pa.binary(), 2 * rows - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return laid.take(pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32)))


def values_without_copy(values: pa.Array) -> Sequence[bytes | memoryview]:
    """Return the bytes of each value of a `binary` array. It must have no nulls and no offset into its buffers."""
    _, bounds_buffer, data = values.buffers()
    bounds: Ints = np.frombuffer(bounds_buffer, np.int32, len(values) + 1)
    if size := _common(np.diff(bounds)):
        found: list[bytes] = np.frombuffer(data, f"V{size}", len(values)).tolist()
        return found
    view = memoryview(data or b"")
    return [view[start:end] for start, end in pairwise(bounds.tolist())]


def to_strings(values: pa.Array) -> pa.Array:
    """Convert bytes to strings, with U+FFFD in place of invalid UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([value.decode("utf-8", "replace") for value in values.to_pylist()], pa.string())


def array_of_rows(octets: Octets, kind: pa.DataType) -> pa.Array:
    """Return an Arrow array with the bytes of each row as one value. `kind` is `binary`, or `string` for ASCII."""
    rows, length = octets.shape
    offsets = np.arange(0, (rows + 1) * length, length, dtype=np.int32) if length else np.zeros(rows + 1, np.int32)
    whole = pa.py_buffer(np.ascontiguousarray(octets))
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), whole])


@lru_cache(maxsize=32)
def constant_array(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    """Return an array that repeats one value. It is cached, because most batches have the same number of rows."""
    return pa.repeat(pa.scalar(value, kind), rows)


def _common(values: Ints) -> int:
    """Return the value if all values are equal; 0 if they differ or the array is empty."""
    return int(values[0]) if len(values) and (values == values[0]).all() else 0


_STRING: Final = pa.string()
_KEY_END: Final = ord(KEY_END)
_ENTRY_END: Final = ord(ENTRY_END)


class PropertyArrays:
    """The properties of a batch of messages. `maps` returns all properties, `column` a single property."""

    def __init__(self, raw: pa.Array) -> None:
        split = _split(raw)
        if split is None:  # the fast way rejects empty names or values and invalid UTF-8
            split = _parsed(raw)
        self._firsts, self._row_names, self._names, self._values = split

    def maps(self) -> pa.Array:
        starts = pa.array(self._firsts.astype(np.int32))
        return pa.MapArray.from_arrays(starts, self._names, self._values)

    def column(self, name: str) -> pa.Array:
        """Return a property of each message: null if the message lacks it, its last value if it occurs twice."""
        rows = len(self._firsts) - 1
        if name in self._row_names:
            width = len(self._row_names)
            last = width - 1 - self._row_names[::-1].index(name)
            return self._values.take(pa.array(np.arange(last, rows * width, width)))
        code = None if self._row_names else self._known.get(name)
        if code is None:
            return pa.nulls(rows, _STRING)
        entries = np.flatnonzero(self._codes == code)
        owners = np.searchsorted(self._firsts, entries, "right") - 1
        chosen = np.full(rows, -1, np.int64)
        chosen[owners] = entries  # if a message has the property twice, numpy keeps the last assignment
        return self._values.take(pa.array(chosen, mask=chosen < 0))

    @cached_property
    def _coded(self) -> pa.DictionaryArray:
        return self._names.dictionary_encode()

    @cached_property
    def _codes(self) -> Ints:
        codes: Ints = self._coded.indices.to_numpy()
        return codes

    @cached_property
    def _known(self) -> dict[str, int]:
        return {name: code for code, name in enumerate(self._coded.dictionary.to_pylist())}


_Split = tuple[Ints, tuple[str, ...], pa.Array, pa.Array]
"""The index of each message's first entry, and the number of all entries; the property names if all messages have the
same names, else (); the name of each entry; the value of each entry. An entry is one property of one message."""
_Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]
_Places = tuple[Ints, Ints, Ints, Ints]
"""The index of each message's first entry, and the number of all entries; the entries' name starts, name ends, value
ends."""


def _split(raw: pa.Array) -> _Split | None:
    """Split encoded properties into entries. Return None if a name or value is empty, or the text is not UTF-8."""
    _, bounds_buffer, data = raw.buffers()
    bounds: Ints = np.frombuffer(bounds_buffer, np.int32, len(raw) + 1, 4 * raw.offset).astype(np.int64)
    if data is None or bounds[0] == bounds[-1]:
        return np.zeros(len(raw) + 1, np.int64), (), pa.array([], _STRING), pa.array([], _STRING)
    octets = np.frombuffer(data, np.uint8, int(bounds[-1]))
    try:
        alike = _split_alike(octets, bounds)
        if alike is not None:
            return alike
        places = _places(octets, bounds)
        if places is None:
            return None
        firsts, name_starts, name_ends, value_ends = places
        row_names = _common_names(data, firsts, name_starts, name_ends)
        names = _tiled(row_names, len(raw)) if row_names else slice_bytes(data, name_starts, name_ends).cast(_STRING)
        return firsts, row_names, names, slice_bytes(data, name_ends + 1, value_ends).cast(_STRING)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None


def _split_alike(octets: _Octets, bounds: Ints) -> _Split | None:
    """Split the properties if all messages have the same names and equally long values; return None otherwise.

    Such properties form a table with a row for each message. The bytes between the values must be the same in each
    row, and contain all separators: another separator would be inside a value. Raises ArrowInvalid and
    UnicodeDecodeError if a name or value is not UTF-8.
    """
    size, rows = int(bounds[1] - bounds[0]), len(bounds) - 1
    if not size or (np.diff(bounds) != size).any():
        return None
    octets = octets[bounds[0] :]
    first = _places(octets[:size], bounds[:2] - bounds[0])
    if first is None:
        return None
    starts, ends, value_ends = (each.tolist() for each in first[1:])
    fixed = zip([0, *value_ends], [*(end + 1 for end in ends), size], strict=True)  # the bytes between the values
    for start, end in fixed:
        if byte_column(octets, start, end, size).tobytes() != octets[start:end].tobytes() * rows:
            return None
    if np.count_nonzero(_are_marks(octets)) != rows * np.count_nonzero(_are_marks(octets[:size])):
        return None
    names = tuple(octets[start:end].tobytes().decode() for start, end in zip(starts, ends, strict=True))
    lengths = tuple(value_end - end - 1 for end, value_end in zip(ends, value_ends, strict=True))
    firsts, value_bounds = _laid_out(lengths, rows)
    values: _Octets = np.empty(rows * sum(lengths), np.uint8)
    at = 0
    for end, value_end, length in zip(ends, value_ends, lengths, strict=True):
        byte_column(values, at, at + length, sum(lengths))[:] = byte_column(octets, end + 1, value_end, size)
        at += length
    laid = pa.Array.from_buffers(pa.binary(), rows * len(names), [None, value_bounds, pa.py_buffer(values)])
    return firsts, names, _tiled(names, rows), laid.cast(_STRING)


@lru_cache(maxsize=8)
def _laid_out(lengths: tuple[int, ...], rows: int) -> tuple[Ints, pa.Buffer]:
    """Return the index of each message's first entry, the number of all entries, and Arrow's offsets of the values."""
    bounds = np.zeros(rows * len(lengths) + 1, np.int32)
    np.cumsum(np.tile(np.array(lengths, np.int32), rows), out=bounds[1:])
    return np.arange(rows + 1) * len(lengths), pa.py_buffer(bounds)


def _are_marks(octets: _Octets) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return whether each byte is a separator: byte 1 or 2. The subtraction wraps byte 0 around to 255."""
    return octets - _KEY_END < 2


def _places(octets: _Octets, bounds: Ints) -> _Places | None:
    """Return the positions of all entries; None if the name or value of an entry is empty or missing."""
    marks = np.flatnonzero(_are_marks(octets))
    kinds = octets[marks]
    firsts = np.searchsorted(marks, bounds)
    open_ended = np.flatnonzero(np.diff(firsts) % 2)  # messages whose last entry lacks its end mark
    if len(open_ended):
        marks = np.insert(marks, firsts[open_ended + 1], bounds[open_ended + 1])
        kinds = np.insert(kinds, firsts[open_ended + 1], _ENTRY_END)
        firsts = firsts + np.searchsorted(open_ended, np.arange(len(bounds)))
    if (kinds[0::2] != _KEY_END).any() or (kinds[1::2] != _ENTRY_END).any():
        return None
    firsts //= 2
    name_ends, value_ends = marks[0::2], marks[1::2]
    name_starts = np.empty_like(name_ends)
    name_starts[1:] = value_ends[:-1] + 1
    has_any = firsts[:-1] < firsts[1:]
    name_starts[firsts[:-1][has_any]] = bounds[:-1][has_any]
    # the entries must fill a message's properties; bytes after the last entry would be a name without a value
    filled = np.where(has_any, np.append(value_ends, 0)[firsts[1:] - 1] + 1 >= bounds[1:], bounds[:-1] == bounds[1:])
    if not filled.all() or (name_ends <= name_starts).any() or (value_ends <= name_ends + 1).any():
        return None
    return firsts, name_starts, name_ends, value_ends


def _common_names(data: pa.Buffer, firsts: Ints, starts: Ints, ends: Ints) -> tuple[str, ...]:
    """Return the names if all messages have the same names in the same order, else (). Raises UnicodeDecodeError."""
    width = int(firsts[1])
    if (np.diff(firsts) != width).any():
        return ()
    found = []
    for place in range(width):
        name = common_slice(data, starts[place::width], ends[place::width])
        if name is None:
            return ()
        found.append(name.decode())
    return tuple(found)


@lru_cache(maxsize=8)
def _tiled(names: tuple[str, ...], rows: int) -> pa.Array:
    return pa.array(names, _STRING).take(pa.array(np.tile(np.arange(len(names)), rows)))


def _parsed(raw: pa.Array) -> _Split:
    firsts, names, values = [0], list[str](), list[str]()
    for stored in raw.to_pylist():
        entries = parse_properties(stored.decode("utf-8", "replace"))
        names += entries
        values += entries.values()
        firsts.append(len(names))
    return np.array(firsts, np.int64), (), pa.array(names, _STRING), pa.array(values, _STRING)
