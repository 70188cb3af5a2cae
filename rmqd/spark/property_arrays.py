"""The properties of many messages as Arrow arrays, split by Arrow itself: several times as fast as dictionaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from rmqd.wire.message_columns import parse_all
from rmqd.wire.properties import ENTRY_END, KEY_END

_STRING: Final = pa.string()


class PropertyArrays:
    """Made once for a batch: `map` has all of the properties, `column` those of one name."""

    def __init__(self, raw: Sequence[bytes]) -> None:
        self._raw = raw
        self._rows = len(raw)
        split = _split(raw)
        if split is None:  # something is not as producers write it
            split = _parsed(raw)
        self._starts, self._names, self._values = split

    def map(self) -> pa.Array:
        """One map for each message."""
        return pa.MapArray.from_arrays(self._starts, self._names, self._values)

    def column(self, name: str) -> pa.Array:
        """The value of a property for each message, null where it has none."""
        chosen = pc.equal(self._names, name)
        values = self._values.filter(chosen)
        if not len(values):
            return pa.nulls(self._rows, _STRING)
        lists = pa.ListArray.from_arrays(self._starts, self._names)
        owners = pc.list_parent_indices(lists).filter(chosen)
        rows = pa.array(range(self._rows), owners.type)
        if owners.equals(rows):
            return values
        if pc.count_distinct(owners).as_py() < len(owners):  # a name comes twice in a message: the last one counts
            return pa.array([entries.get(name) for entries in parse_all(self._raw)], _STRING)
        return values.take(pc.index_in(rows, value_set=owners))


def _split(raw: Sequence[bytes]) -> tuple[pa.Array, pa.Array, pa.Array] | None:
    """Where each message's entries begin, their names, their values; None where an entry is not a name and a value."""
    try:
        texts = pa.array(raw, _STRING)
    except pa.ArrowInvalid:  # not UTF-8
        return None
    entries = pc.split_pattern(pc.utf8_rtrim(texts, ENTRY_END), ENTRY_END)
    parts = pc.split_pattern(entries.flatten(), KEY_END)
    if _least_and_most(pc.list_value_length(parts)) != (2, 2):
        return None
    names, values = pc.list_element(parts, 0), pc.list_element(parts, 1)
    if any(_least_and_most(pc.binary_length(texts))[0] == 0 for texts in (names, values)):
        return None
    return entries.offsets, names, values


def _least_and_most(numbers: pa.Array) -> tuple[int, int]:
    found = pc.min_max(numbers).as_py()
    return found["min"], found["max"]


def _parsed(raw: Sequence[bytes]) -> tuple[pa.Array, pa.Array, pa.Array]:
    starts, names, values = [0], list[str](), list[str]()
    for entries in parse_all(raw):
        names += entries
        values += entries.values()
        starts.append(len(names))
    return pa.array(starts, pa.int32()), pa.array(names, _STRING), pa.array(values, _STRING)
