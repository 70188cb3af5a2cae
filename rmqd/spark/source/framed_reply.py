"""Finds the start of each record of a response before the response is accepted. Incomplete responses are pulled again.

The layout of a record is the same as in `rmqd.wire.messages.record`. As in `rmqd.wire.messages.decode`, its total size
and the lengths of its parts must agree. No object is created for a record: `rmqd.spark.source.source_records` decodes
many at once. Most producers send messages of equal length, so consecutive records of equal layout are checked at once.

The properties of many messages as Arrow arrays, split at their separators without a Python object for each message.

Messages of one producer usually have the same names in the same order. Then the names are decoded only once.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.spark.source.range_slices import Ints, column, common_value, cut
from rmqd.wire.messages.properties import BORN_HOST_V6, ENTRY_END, KEY_END, STORE_HOST_V6, parse_properties
from rmqd.wire.messages.record import MAGIC_V1, MAGIC_V2

# total size, magic, sys flag, and body size if both hosts are IPv4
_unpack: Final = Struct(">II28xi44xI").unpack_from
_body_size_at: Final = Struct(">I").unpack_from
_BODY: Final = 88  # position of the body with two IPv4 hosts
_LONGER: Final = 12  # additional bytes of an IPv6 host
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_total_at: Final = Struct(">I").unpack_from
_magic_at: Final = Struct(">4xI").unpack_from
_FIXED: Final = (*range(8), *range(36, 40), *range(84, 88))  # positions of the bytes that `_unpack` reads
_FEWEST_ALIKE: Final = 4
_MOST_ALIKE: Final = 64


@lru_cache(maxsize=256)
def _deciding(count: int, size: int, topic: range, properties: int) -> Ints:
    """Return the positions of the bytes that determine the layout of `count` records with IPv4 hosts.

    `size` is the size of a record; `topic` and `properties` are the positions of the two lengths in a record.
    """
    record = [*_FIXED, *topic, properties, properties + 1]
    return np.add.outer(np.arange(count) * size, record).ravel()


class FramedReply:
    """The bytes of a response from `start` on, which are `count` records.

    Consecutive records of equal size are a run. `runs` has three numbers for each run: the position of the first
    record, the number of records, and their size. `broken` is why the bytes are not complete records; None if they are.
    Then `runs` contains the records before the fault.
    """

    __slots__ = ("broken", "count", "data", "runs", "start")

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.start = start
        self.count = 0
        self.runs: list[int] = []
        self.broken = self._frame()

    def _frame(self) -> str | None:
        data, size, at = self.data, len(self.data), self.start
        may_be_alike = True
        try:
            while at < size:
                total, magic, sys_flag, body_size = _unpack(data, at)
                body_start = at + _BODY
                if sys_flag & _HOSTS_V6:
                    body_start += _LONGER * (sys_flag & _HOSTS_V6).bit_count()
                    body_size = _body_size_at(data, body_start - 4)[0]
                topic = body_start + body_size
                topic_end = topic + 1 + data[topic]
                if magic != MAGIC_V1:
                    if magic != MAGIC_V2:
                        return f"a message starts with the unknown magic 0x{magic:08X}"
                    topic_end = topic + 2 + (data[topic] << 8 | data[topic + 1])
                end = topic_end + 2 + (data[topic_end] << 8 | data[topic_end + 1])
                if end - at != total:
                    return f"a message is declared with {total} bytes, but its parts have {end - at}"
                in_run = 1
                if may_be_alike and not sys_flag & _HOSTS_V6:
                    alike = self._alike(at, total, topic - at, topic_end - at)
                    may_be_alike = alike > 0
                    in_run += alike
                self.runs += (at, in_run, total)
                self.count += in_run
                at += in_run * total
        except (IndexError, StructError):
            return f"a message is cut off: only {size - at} bytes are left for it"
        return None if at == size else f"the last message ends {at - size} bytes after the response"

    def _alike(self, at: int, size: int, topic: int, properties: int) -> int:
        """Return how many next records have the layout of the record at `at`; 0 if they are few or one differs."""
        data, end = self.data, at + size
        count = min((len(data) - end) // size, _MOST_ALIKE)
        if count < _FEWEST_ALIKE or _total_at(data, end + (count - 1) * size)[0] != size:
            return 0
        topic_size = range(topic, topic + (1 if _magic_at(data, at)[0] == MAGIC_V1 else 2))
        places = _deciding(1 + count, size, topic_size, properties)
        found = np.frombuffer(data, np.uint8, (1 + count) * size, at).take(places).tobytes()
        return count if found == found[: len(places) // (1 + count)] * (1 + count) else 0


_STRING: Final = pa.string()
_KEY_END: Final = ord(KEY_END)
_ENTRY_END: Final = ord(ENTRY_END)


class PropertyArrays:
    """Created once for a batch of stored properties (`binary`). `map` has all of them, `column` one property."""

    def __init__(self, raw: pa.Array) -> None:
        split = _split(raw)
        if split is None:  # the encoding is unusual
            split = _parsed(raw)
        self._firsts, self._row_names, self._names, self._values = split

    def map(self) -> pa.Array:
        """Return one map for each message."""
        starts = pa.array(self._firsts.astype(np.int32))
        return pa.MapArray.from_arrays(starts, self._names, self._values)

    def column(self, name: str) -> pa.Array:
        """Return the value of a property for each message; null if it is missing, the last value if it is repeated."""
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
        chosen[owners] = entries  # if a row has two entries, numpy keeps the last
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
"""Start of each message's entries, plus the end; the names if all messages have the same; all names; all values."""
_Octets = np.ndarray[tuple[int], np.dtype[np.uint8]]
_Places = tuple[Ints, Ints, Ints, Ints]
"""Start of each message's entries, plus the end; then for each entry: name start, name end, value end."""


def _split(raw: pa.Array) -> _Split | None:
    """Return None if an entry lacks its name or value, or something is not UTF-8."""
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
        names = _tiled(row_names, len(raw)) if row_names else cut(data, name_starts, name_ends).cast(_STRING)
        return firsts, row_names, names, cut(data, name_ends + 1, value_ends).cast(_STRING)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return None


def _split_alike(octets: _Octets, bounds: Ints) -> _Split | None:
    """Split messages with the same names, whose values have the same lengths; None for other messages.

    Such entries form a table. The bytes between the values must be equal to the first message's, which contain all
    of its separators; a separator inside a value would be an additional one. Raises ArrowInvalid and
    UnicodeDecodeError if something is not UTF-8.
    """
    size, rows = int(bounds[1] - bounds[0]), len(bounds) - 1
    if not size or (np.diff(bounds) != size).any():
        return None
    octets = octets[bounds[0] :]
    first = _places(octets[:size], bounds[:2] - bounds[0])
    if first is None:
        return None
    starts, ends, value_ends = (each.tolist() for each in first[1:])
    fixed = zip([0, *value_ends], [*(end + 1 for end in ends), size], strict=True)  # the parts between values
    for start, end in fixed:
        if column(octets, start, end, size).tobytes() != octets[start:end].tobytes() * rows:
            return None
    if np.count_nonzero(_are_marks(octets)) != rows * np.count_nonzero(_are_marks(octets[:size])):
        return None
    names = tuple(octets[start:end].tobytes().decode() for start, end in zip(starts, ends, strict=True))
    lengths = tuple(value_end - end - 1 for end, value_end in zip(ends, value_ends, strict=True))
    firsts, value_bounds = _laid_out(lengths, rows)
    values: _Octets = np.empty(rows * sum(lengths), np.uint8)
    at = 0
    for end, value_end, length in zip(ends, value_ends, lengths, strict=True):
        column(values, at, at + length, sum(lengths))[:] = column(octets, end + 1, value_end, size)
        at += length
    laid = pa.Array.from_buffers(pa.binary(), rows * len(names), [None, value_bounds, pa.py_buffer(values)])
    return firsts, names, _tiled(names, rows), laid.cast(_STRING)


@lru_cache(maxsize=8)
def _laid_out(lengths: tuple[int, ...], rows: int) -> tuple[Ints, pa.Buffer]:
    """Return the start of each message's entries, plus the end, and the offsets of values of these lengths in bytes."""
    bounds = np.zeros(rows * len(lengths) + 1, np.int32)
    np.cumsum(np.tile(np.array(lengths, np.int32), rows), out=bounds[1:])
    return np.arange(rows + 1) * len(lengths), pa.py_buffer(bounds)


def _are_marks(octets: _Octets) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return whether each byte is a separator. The two separators are adjacent, and lower bytes wrap around."""
    return octets - _KEY_END < 2


def _places(octets: _Octets, bounds: Ints) -> _Places | None:
    """Return the positions of the entries; None if an entry lacks its name or value."""
    marks = np.flatnonzero(_are_marks(octets))
    kinds = octets[marks]
    firsts = np.searchsorted(marks, bounds)
    open_ended = np.flatnonzero(np.diff(firsts) % 2)  # the last entry may lack its end mark
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
    # entries must fill the bytes of a message: a remainder is a name without a value
    filled = np.where(has_any, np.append(value_ends, 0)[firsts[1:] - 1] + 1 >= bounds[1:], bounds[:-1] == bounds[1:])
    if not filled.all() or (name_ends <= name_starts).any() or (value_ends <= name_ends + 1).any():
        return None
    return firsts, name_starts, name_ends, value_ends


def _common_names(data: pa.Buffer, firsts: Ints, starts: Ints, ends: Ints) -> tuple[str, ...]:
    """Return the names if all messages have the same, in the same order, else (). Raises UnicodeDecodeError."""
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
