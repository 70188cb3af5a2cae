"""Stored messages decoded straight into columns, many at once: their bytes are looked at by numpy and Arrow.

The layout is that of `rmqd.wire.messages.message`. Replies are kept as they came until there are enough for a batch;
then each field of all of them is read in one go. What is done for each message by itself is finding its end, and its
CRC.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.errors import ProtocolError
from rmqd.spark.source.inner_batches import unwrapped, why_closed
from rmqd.spark.source.property_arrays import PropertyArrays
from rmqd.spark.source.slices import Ints, cut
from rmqd.wire.messages.compression import decompress
from rmqd.wire.messages.properties import TAGS
from rmqd.wire.messages.record import MAGIC_V1, MAGIC_V2
from rmqd.wire.messages.sys_flag import BORN_HOST_V6, COMPRESSED, KNOWN, NEED_UNWRAP, STORE_HOST_V6

Array = np.ndarray[tuple[int], np.dtype[Any]]

LEAST_BYTES: Final = 91  # with IPv4, and without body, topic and properties
V4_BYTES: Final = 8
V6_BYTES: Final = 20

# up to the two hosts, whose length depends on sys_flag
_HEAD: Final = np.dtype(
    [
        ("store_size", ">u4"),
        ("magic", ">u4"),
        ("body_crc", ">u4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("commit_log_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
    ]
)
# after the second one; between the two is `store_timestamp`
_TAIL: Final = np.dtype([("reconsume_times", ">i4"), ("prepared_transaction_offset", ">i8"), ("body_size", ">u4")])
_LONG: Final = np.dtype(">i8")
_SIZE: Final = Struct(">I")


class Records:
    """Grows by replies; `finish` decodes all of them."""

    __slots__ = ("_parts", "_rows", "_spans", "_starts", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self._parts: list[memoryview] = []
        self._starts: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self._rows: list[int] = []

    def __len__(self) -> int:
        """How many there are, those that are not to be taken included."""
        return len(self._starts)

    def add(self, data: bytes, start: int, low: int, high: int) -> None:
        """Take the records that fill `data` from `start` on: those of the offsets from `low` to before `high`.

        Raises ProtocolError where they do not fill it.
        """
        at, size, before = start, len(data), len(self._starts)
        shift = self.size_bytes - start
        found, size_at = self._starts.append, _SIZE.unpack_from
        try:
            for _ in range((size - start) // LEAST_BYTES + 1):
                if at >= size:
                    break
                found(at + shift)
                at += size_at(data, at)[0]
        except StructError as error:
            raise ProtocolError(f"a message is cut short: {size - at} bytes are left for it") from error
        if at > size:
            raise ProtocolError(f"the last message goes {at - size} bytes past the reply's end")
        if at < size:
            raise ProtocolError(f"messages of less than {LEAST_BYTES} bytes each, which is the least that one takes")
        self._parts.append(memoryview(data)[start:])
        self._rows.append(len(self._starts) - before)
        self._spans.append((low, high))
        self.size_bytes += size - start

    def finish(self, tags: frozenset[str] = frozenset(), *, permissive: bool = False) -> Decoded:
        """Decode all that was added. With `tags`, only what has one of them.

        Raises ProtocolError for a record whose parts do not fit together, and, unless it is `permissive`, for one that
        is taken and whose body does not match its CRC or cannot be decompressed.
        """
        data = b"".join(self._parts)
        starts = np.array(self._starts, np.int64)
        lows, highs = (np.repeat(each, self._rows or [0]) for each in np.array(self._spans or [(0, 0)], np.int64).T)
        layout = _Layout(data, starts)
        batches = frozenset(np.flatnonzero(layout.head["sys_flag"] & NEED_UNWRAP).tolist())
        if batches:
            data, starts, rows = unwrapped(data, starts, layout.ends, batches)
            layout, lows, highs = _Layout(data, starts), lows[rows], highs[rows]
        offsets, is_batch = layout.head["queue_offset"], (layout.head["sys_flag"] & NEED_UNWRAP) != 0
        # a batch that could not be taken apart may begin before the range and have members in it
        taken = ((lows <= offsets) | is_batch) & (offsets < highs)
        if tags:
            present = PropertyArrays(layout.properties()).column(TAGS)
            taken &= np.array([tag in tags for tag in present.to_pylist()], np.bool_)
        if not taken.all():
            layout = _Layout(data, starts[taken])
        return Decoded(layout, permissive=permissive)


class _Layout:
    """Where each field of a record lies in the bytes of a reply."""

    def __init__(self, data: bytes, starts: Ints) -> None:
        self.data = data
        self.starts = self.ends = starts
        self.head = _gather(data, _HEAD, starts)
        sizes = self.head["store_size"].astype(np.int64)
        if (sizes < LEAST_BYTES).any():
            raise ProtocolError(f"a message announces {sizes.min()} bytes; the least that one takes is {LEAST_BYTES}")
        is_v2 = self.head["magic"] != MAGIC_V1
        if is_v2.any():
            unknown = self.head["magic"][is_v2 & (self.head["magic"] != MAGIC_V2)]
            if len(unknown):
                raise ProtocolError(f"a message starts with the magic 0x{unknown[0]:08X}, none that RocketMQ writes")
        flags = self.head["sys_flag"]
        self.born_long = (flags & BORN_HOST_V6) != 0
        self.store_long = (flags & STORE_HOST_V6) != 0
        self.any_long = bool(self.born_long.any() or self.store_long.any())
        self.born_hosts = starts + _HEAD.itemsize
        self.store_timestamps = self.born_hosts + _host_bytes(self.born_long)
        self.store_hosts = self.store_timestamps + _LONG.itemsize
        tails = self.store_hosts + _host_bytes(self.store_long)
        self.ends = starts + sizes
        self._lay_out_rest(self.ends, tails, is_v2)

    def _lay_out_rest(self, ends: Ints, tails: Ints, is_v2: Array) -> None:
        self.body_starts = tails + _TAIL.itemsize
        _fit(self.body_starts, ends - 3)
        self.tail = _gather(self.data, _TAIL, tails)
        self.body_ends = self.body_starts + self.tail["body_size"]
        _fit(self.body_ends, ends - 3)
        octets = np.frombuffer(self.data, np.uint8)
        topic_sizes = octets[self.body_ends].astype(np.int64)
        self.topic_starts = self.body_ends + 1
        if is_v2.any():
            topic_sizes[is_v2] = topic_sizes[is_v2] << 8 | octets[self.topic_starts[is_v2]]
            self.topic_starts[is_v2] += 1
        self.topic_ends = self.topic_starts + topic_sizes
        _fit(self.topic_ends, ends - 2)
        sizes = octets[self.topic_ends].astype(np.int64) << 8 | octets[self.topic_ends + 1]
        self.property_starts = self.topic_ends + 2
        self.property_ends = self.property_starts + sizes
        _fit(self.property_ends, ends)
        _fit(ends, self.property_ends)

    def properties(self) -> pa.Array:
        return cut(self.data, self.property_starts, self.property_ends)


class Decoded:
    """The messages of a batch. `bodies` are decompressed; `errors` has, by row, why one has no body."""

    def __init__(self, layout: _Layout, *, permissive: bool) -> None:
        self._layout = layout
        self.errors: dict[int, str] = {}
        self._check(permissive=permissive)
        self.bodies = self._decode_bodies(permissive=permissive)

    def __len__(self) -> int:
        return len(self._layout.starts)

    def fixed(self, name: str) -> Array:
        """A field of fixed place and size, as the machine has its numbers."""
        if name == "store_timestamp":
            values = _gather(self._layout.data, _LONG, self._layout.store_timestamps)
        else:
            values = (self._layout.head if name in (_HEAD.names or ()) else self._layout.tail)[name]
        return values.astype(values.dtype.newbyteorder("="))

    def topics(self) -> pa.Array:
        """The names that the records have, as bytes."""
        return cut(self._layout.data, self._layout.topic_starts, self._layout.topic_ends)

    def properties(self) -> pa.Array:
        """The properties as they are stored, as bytes."""
        return self._layout.properties()

    def hosts(self, name: str) -> Array | list[bytes]:
        """`born_host` or `store_host` as it is stored: as numbers of 8 bytes, or, where one is IPv6, as bytes."""
        layout = self._layout
        starts, long = (
            (layout.born_hosts, layout.born_long) if name == "born_host" else (layout.store_hosts, layout.store_long)
        )
        if not layout.any_long:
            return _gather(layout.data, _LONG, starts)
        ends = starts + _host_bytes(long)
        return [layout.data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _check(self, *, permissive: bool) -> None:
        view, layout = memoryview(self._layout.data), self._layout
        bounds = zip(layout.body_starts.tolist(), layout.body_ends.tolist(), strict=True)
        found = np.array([crc32(view[start:end]) for start, end in bounds], np.uint32)
        # Java keeps 31 of its bits
        for row in np.flatnonzero((found ^ layout.head["body_crc"]) & 0x7FFFFFFF).tolist():
            self._corrupt(row, "the CRC of its body does not match", permissive=permissive)
        for row in np.flatnonzero(layout.head["sys_flag"] & (NEED_UNWRAP | ~KNOWN)).tolist():
            if row not in self.errors:
                record = layout.data[layout.starts[row] : layout.ends[row]]
                self._corrupt(row, why_closed(record), permissive=permissive)

    def _decode_bodies(self, *, permissive: bool) -> pa.Array:
        layout = self._layout
        packed = np.flatnonzero(layout.head["sys_flag"] & COMPRESSED).tolist()
        if not packed and not self.errors:
            return cut(layout.data, layout.body_starts, layout.body_ends)
        bounds = zip(layout.body_starts.tolist(), layout.body_ends.tolist(), strict=True)
        bodies: list[bytes | None] = [layout.data[start:end] for start, end in bounds]
        flags = layout.head["sys_flag"]
        for row in packed:
            if row not in self.errors:
                try:
                    bodies[row] = decompress(bodies[row] or b"", int(flags[row]))
                except ProtocolError as error:
                    self._corrupt(row, str(error), permissive=permissive)
        for row in self.errors:
            bodies[row] = None
        return pa.array(bodies, pa.binary())

    def _corrupt(self, row: int, reason: str, *, permissive: bool) -> None:
        if not permissive:
            offset = self._layout.head["queue_offset"][row]
            raise ProtocolError(f"the message at offset {offset} is corrupt: {reason}")
        self.errors[row] = reason


def _gather(data: bytes, what: np.dtype[Any], places: Ints) -> Array:
    """What lies at these places, wherever they are: to numpy an item begins at each byte of the buffer."""
    if not len(places):
        return np.empty(0, what)
    last = len(data) - what.itemsize
    if places[-1] > last:
        raise ProtocolError(f"a message is cut short: {len(data) - places[-1]} bytes are left for it")
    # as bytes without a meaning, which numpy copies ten times as fast as fields
    whole: Array = np.ndarray((last + 1,), f"V{what.itemsize}", data, strides=(1,))
    return whole[places].view(what)


def _host_bytes(is_long: Array) -> Ints:
    sizes: Ints = np.where(is_long, V6_BYTES, V4_BYTES)
    return sizes


def _fit(inner: Ints, outer: Ints) -> None:
    """Raise ProtocolError where a part goes past the record that it is of."""
    beyond = inner > outer
    if beyond.any():
        row = int(beyond.argmax())
        raise ProtocolError(f"a message's parts take {inner[row] - outer[row]} bytes more or less than it announces")
