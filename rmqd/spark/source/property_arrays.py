"""The properties of many messages as Arrow arrays, found by their separators: no Python object for each message."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.spark.source.slices import Ints, cut
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
        self._firsts, self._names, self._values = split
        coded = self._names.dictionary_encode()
        self._codes = coded.indices.to_numpy()
        self._known = {name: code for code, name in enumerate(coded.dictionary.to_pylist())}

    def map(self) -> pa.Array:
        """One map for each message."""
        starts = pa.array(self._firsts.astype(np.int32))
        return pa.MapArray.from_arrays(starts, self._names, self._values)

    def column(self, name: str) -> pa.Array:
        """The value of a property for each message, null where it has none; the last one where it comes twice."""
        rows = len(self._firsts) - 1
        code = self._known.get(name)
        if code is None:
            return pa.nulls(rows, _STRING)
        entries = np.flatnonzero(self._codes == code)
        owners = np.searchsorted(self._firsts, entries, "right") - 1
        chosen = np.full(rows, -1, np.int64)
        chosen[owners] = entries  # of two for the same row numpy keeps the last
        return self._values.take(pa.array(chosen, mask=chosen < 0))


def _split(raw: pa.Array) -> tuple[Ints, pa.Array, pa.Array] | None:
    """Where each message's entries begin, and one more; their names, their values.

    None where an entry is not a name and a value, or something is not UTF-8.
    """
    _, bounds_buffer, data = raw.buffers()
    bounds: Ints = np.frombuffer(bounds_buffer, np.int32, len(raw) + 1, 4 * raw.offset).astype(np.int64)
    if data is None or bounds[0] == bounds[-1]:
        return np.zeros(len(raw) + 1, np.int64), pa.array([], _STRING), pa.array([], _STRING)
    octets = np.frombuffer(data, np.uint8, int(bounds[-1]))
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
    try:
        names = cut(data, name_starts, name_ends).cast(_STRING)
        return firsts, names, cut(data, name_ends + 1, value_ends).cast(_STRING)
    except pa.ArrowInvalid:
        return None


def _parsed(raw: pa.Array) -> tuple[Ints, pa.Array, pa.Array]:
    firsts, names, values = [0], list[str](), list[str]()
    for stored in raw.to_pylist():
        entries = parse_properties(stored.decode("utf-8", "replace"))
        names += entries
        values += entries.values()
        firsts.append(len(names))
    return np.array(firsts, np.int64), pa.array(names, _STRING), pa.array(values, _STRING)
