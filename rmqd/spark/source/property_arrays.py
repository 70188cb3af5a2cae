"""The properties of many messages as Arrow arrays, found by their separators: no Python object for each message.

Messages of one producer mostly have the same names in the same order; then the names are looked at once.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.spark.source.slices import Ints, common_value, cut
from rmqd.wire.messages.properties import ENTRY_END, KEY_END, parse_properties

_STRING: Final = pa.string()
_KEY_END: Final = ord(KEY_END)
_ENTRY_END: Final = ord(ENTRY_END)


class PropertyArrays:
    """Made once for a batch of stored properties (`binary`): `map` has all of them, `column` those of one name."""

    def __init__(self, raw: pa.Array) -> None:
        split = _split(raw)
        if split is None:  # something is not as producers write it
            split = _parsed(raw)
        self._firsts, self._row_names, self._names, self._values = split

    def map(self) -> pa.Array:
        """One map for each message."""
        starts = pa.array(self._firsts.astype(np.int32))
        return pa.MapArray.from_arrays(starts, self._names, self._values)

    def column(self, name: str) -> pa.Array:
        """The value of a property for each message, null where it has none; the last one where it comes twice."""
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
        chosen[owners] = entries  # of two for the same row numpy keeps the last
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
_Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]
_Places = tuple[Ints, Ints, Ints, Ints]
"""Where each message's entries begin, and one more; of all entries the names' starts and ends, and the values' ends."""


def _split(raw: pa.Array) -> _Split | None:
    """Where each message's entries begin, and one more; a message's names if all have the same; all names, all values.

    None where an entry is not a name and a value, or something is not UTF-8.
    """
    _, bounds_buffer, data = raw.buffers()
    bounds: Ints = np.frombuffer(bounds_buffer, np.int32, len(raw) + 1, 4 * raw.offset).astype(np.int64)
    if data is None or bounds[0] == bounds[-1]:
        return np.zeros(len(raw) + 1, np.int64), (), pa.array([], _STRING), pa.array([], _STRING)
    octets = np.frombuffer(data, np.uint8, int(bounds[-1]))
    places, are_alike = _places_alike(octets, bounds), True
    if places is None:
        places, are_alike = _places(octets, bounds), False
    if places is None:
        return None
    firsts, name_starts, name_ends, value_ends = places
    try:
        if are_alike:
            width = int(firsts[1])
            bounds_of_names = zip(name_starts[:width].tolist(), name_ends[:width].tolist(), strict=True)
            row_names = tuple(octets[start:end].tobytes().decode() for start, end in bounds_of_names)
        else:
            row_names = _common_names(data, firsts, name_starts, name_ends)
        names = _tiled(row_names, len(raw)) if row_names else cut(data, name_starts, name_ends).cast(_STRING)
        return firsts, row_names, names, cut(data, name_ends + 1, value_ends).cast(_STRING)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None


def _places_alike(octets: _Octets, bounds: Ints) -> _Places | None:
    """The places of entries if all messages have the same names at the same places, else None."""
    size, rows = int(bounds[1] - bounds[0]), len(bounds) - 1
    if not size or (np.diff(bounds) != size).any():
        return None
    table = octets[bounds[0] :].reshape(rows, size)
    is_mark = table - _KEY_END < 2
    first = _places(octets[: bounds[1]], bounds[:2])
    if first is None or not is_mark[0, -1] or (is_mark != is_mark[0]).any():
        return None
    starts, ends, value_ends = (each - bounds[0] for each in first[1:])
    is_fixed = is_mark[0].copy()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        is_fixed[start:end] = True
    if ((table != table[0]) & is_fixed).any():
        return None
    firsts = np.arange(rows + 1) * len(starts)
    begins = bounds[:-1, np.newaxis]
    return firsts, (begins + starts).ravel(), (begins + ends).ravel(), (begins + value_ends).ravel()


def _places(octets: _Octets, bounds: Ints) -> _Places | None:
    """The places of entries; None where an entry is not a name and a value."""
    marks = np.flatnonzero(octets - _KEY_END < 2)  # the two separators are neighbours, and what is below wraps around
    kinds = octets[marks]
    firsts = np.searchsorted(marks, bounds)
    open_ended = np.flatnonzero(np.diff(firsts) % 2)  # the last entry's end may be left out
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
    # where a message has bytes, entries fill them: what is left over is a name without a value
    filled = np.where(has_any, np.append(value_ends, 0)[firsts[1:] - 1] + 1 >= bounds[1:], bounds[:-1] == bounds[1:])
    if not filled.all() or (name_ends <= name_starts).any() or (value_ends <= name_ends + 1).any():
        return None
    return firsts, name_starts, name_ends, value_ends


def _common_names(data: pa.Buffer, firsts: Ints, starts: Ints, ends: Ints) -> tuple[str, ...]:
    """The names of each message where all have the same in the same order, else nothing. Raises UnicodeDecodeError."""
    width = int(firsts[1])
    if (np.diff(firsts) != width).any():
        return ()
    found = []
    for place in range(width):
        name = common_value(data, starts[place::width], ends[place::width])
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
