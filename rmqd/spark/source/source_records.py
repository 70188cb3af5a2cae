"""Decodes many stored messages at once into columns, using numpy and Arrow.

`rmqd.wire.messages.record` describes the layout of a record, the stored form of a message. Responses are kept until
they fill a batch. Then each field is read for all messages in one step; only CRCs are checked message by message. If a
broker stores a producer's batch as one record (queue.type=BatchCQ), the record is unpacked, as for handlers.

Before a response is accepted, `FramedResponse` finds the start of each record. If a response is incomplete, the pull is
repeated. As in `rmqd.wire.messages.decode`, a record's total size and the lengths of its parts must agree. Most
producers send messages of equal length, so consecutive records of equal layout are checked at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.errors import ProtocolError
from rmqd.spark.source.buffer_arrays import (
    Array,
    Ints,
    PropertyArrays,
    common_slice,
    constant_array,
    items_at_positions,
    positions_of_runs,
    slice_bytes,
    to_strings,
    true_offsets,
    values_without_copy,
)
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.compression import decompress
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.properties import BORN_HOST_V6, COMPRESSED, KNOWN_FLAGS, NEED_UNWRAP, STORE_HOST_V6, TAGS
from rmqd.wire.messages.record import MAGIC_V1, MAGIC_V2

_NO_QUEUE: Final = MessageQueue("", "", -1)
_REMEDY: Final = "to continue without its body, set mode=PERMISSIVE, or on_corrupt_message: skip for a pipeline"


def unpack_batches(data: bytes, starts: Ints, ends: Ints, batches: frozenset[int]) -> tuple[bytes, Ints, Ints]:
    """Replace each record whose row is in `batches` by the batch's messages, as records.

    Return the bytes of all records, and for each record its start and its row in `starts`. A batch that cannot be
    unpacked stays as it is; `unreadable_reason` returns the reason.
    """
    parts: list[bytes] = []
    rows: list[int] = []
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        found = _records(data[start:end]) if row in batches else [data[start:end]]
        parts += found
        rows += [row] * len(found)
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    return b"".join(parts), np.cumsum(sizes) - sizes, np.array(rows, np.int64)


def unreadable_reason(record: bytes) -> str:
    """Return why a complete record is unreadable: its batch cannot be unpacked, or its `sys_flag` is unknown."""
    block = decode_messages(record, _NO_QUEUE)
    return block.corrupt[0].reason if block.corrupt else "it contains a batch of an unknown format"


def _records(record: bytes) -> list[bytes]:
    block = decode_messages(record, _NO_QUEUE)
    return [record] if block.corrupt else [message.record for message in block.messages]


try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # a cluster's environment without zlib_ng, or a platform that lacks it; zlib is slower
    from zlib import crc32

V4_BYTES: Final = 8
V6_BYTES: Final = 20

# a record's fields before its two hosts, whose length depends on `sys_flag`
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
# a record's fields after its second host; `store_timestamp` is between the two hosts
_TAIL: Final = np.dtype([("reconsume_times", ">i4"), ("prepared_transaction_offset", ">i8"), ("body_size", ">u4")])
_LONG: Final = np.dtype(">i8")
# all fixed fields of a record with two IPv4 hosts: one read for each record causes fewer cache misses than many
_HOSTS: Final = [("born_host", ">i8"), ("store_timestamp", ">i8"), ("store_host", ">i8")]
_WHOLE: Final = np.dtype([*_HEAD.descr, *_HOSTS, *_TAIL.descr])
# total size, magic, sys flag, and body size if both hosts are IPv4
_unpack: Final = Struct(">II28xi44xI").unpack_from
_size_at: Final = Struct(">I").unpack_from
_BODY: Final = 88  # position of the body in a record with two IPv4 hosts
_LONGER: Final = 12  # additional bytes of an IPv6 host
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_magic_at: Final = Struct(">4xI").unpack_from
_FIXED: Final = (*range(8), *range(36, 40), *range(84, 88))  # positions of the bytes that `_unpack` reads
_FEWEST_ALIKE: Final = 4
_MAX_ALIKE: Final = 64


@lru_cache(maxsize=256)
def _deciding(count: int, size: int, topic: range, properties: int) -> Ints:
    """Return the positions of the bytes that determine the layout of `count` consecutive records with IPv4 hosts.

    Each record has `size` bytes. In a record, `topic` are the positions of the topic's length, and `properties` is the
    first position of the properties' length.
    """
    record = [*_FIXED, *topic, properties, properties + 1]
    return np.add.outer(np.arange(count) * size, record).ravel()


class FramedResponse:
    """A pull response `data` whose body, from `start` on, consists of `count` records.

    Consecutive records of equal size are a run. `runs` has three numbers for each run: the position of the first
    record, the number of records, and their size. `broken` is None if all records are complete. Otherwise `broken`
    describes the first damaged record, and `runs` contains only the records before it.
    """

    __slots__ = ("count", "damage", "data", "runs", "start")

    def __init__(self, data: bytes, start: int) -> None:
        self.data = data
        self.start = start
        self.count = 0
        self.runs: list[int] = []
        self.damage = self._frame()

    def _frame(self) -> str | None:
        data, size, at = self.data, len(self.data), self.start
        may_be_alike = True
        try:
            while at < size:
                total, magic, sys_flag, body_size = _unpack(data, at)
                body_start = at + _BODY
                if sys_flag & _HOSTS_V6:
                    body_start += _LONGER * (sys_flag & _HOSTS_V6).bit_count()
                    body_size = _size_at(data, body_start - 4)[0]
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
        """Return how many of the next records have the layout of the record at `at`; 0 if few follow or one differs."""
        data, end = self.data, at + size
        count = min((len(data) - end) // size, _MAX_ALIKE)
        if count < _FEWEST_ALIKE or _size_at(data, end + (count - 1) * size)[0] != size:
            return 0
        topic_size = range(topic, topic + (1 if _magic_at(data, at)[0] == MAGIC_V1 else 2))
        places = _deciding(1 + count, size, topic_size, properties)
        found = np.frombuffer(data, np.uint8, (1 + count) * size, at).take(places).tobytes()
        return count if found == found[: len(places) // (1 + count)] * (1 + count) else 0


@dataclass(frozen=True, slots=True)
class QueueOrigin:
    """The queue of a response's messages. If `tags` is not empty, only messages with one of these tags are wanted."""

    queue: MessageQueue
    tags: frozenset[str] = frozenset()


class RecordBuffer:
    """Collects the records of several responses. `finish` decodes all of them together."""

    __slots__ = ("_count", "_origins", "_parts", "_replies", "_runs", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self._origins: list[QueueOrigin] = []
        self._parts: list[memoryview] = []
        self._count = 0
        self._runs: list[int] = []
        # for each response: first, end and next begin offset, index of its origin, shift in `_parts`, record count
        self._replies: list[tuple[int, int, int, int, int, int]] = []

    def __len__(self) -> int:
        """Return the number of records, including unwanted records, which `finish` removes."""
        return self._count

    def add(self, reply: FramedResponse, low: int, high: int, origin: QueueOrigin, following: int) -> None:
        """Add the records of a response. Only messages at offsets from `low` to before `high` are wanted.

        `following` is the response's next begin offset: all its messages are below it.
        """
        if not self._origins or self._origins[-1] is not origin:
            self._origins.append(origin)
        self._parts.append(memoryview(reply.data)[reply.start :])
        self._runs += reply.runs
        self._count += reply.count
        shift, origin_at = self.size_bytes - reply.start, len(self._origins) - 1
        self._replies.append((low, high, following, origin_at, shift, reply.count))
        self.size_bytes += len(reply.data) - reply.start

    def finish(self, *, permissive: bool = False, check_crc: bool = True) -> DecodedRecords:
        """Decode all wanted messages.

        A message is corrupt if its body cannot be decompressed, its batch or flags are unreadable, its offset
        contradicts its place, or, with `check_crc`, its CRC does not match. Raises ProtocolError for a corrupt message
        unless `permissive`, and always if the place of a message is unknown.
        """
        data = b"".join(self._parts)
        replies = np.array(self._replies or [(0, 0, 0, 0, 0, 0)], np.int64).T
        reply_of = np.repeat(np.arange(replies.shape[1]), replies[5])
        starts = positions_of_runs(self._runs) + replies[4][reply_of]
        layout = _Layout(data, starts)
        batches = frozenset(np.flatnonzero(layout.head["sys_flag"] & NEED_UNWRAP).tolist())
        if batches:
            data, starts, rows = unpack_batches(data, starts, layout.ends, batches)
            layout, reply_of = _Layout(data, starts), reply_of[rows]
        lows, highs, ends, origins = (each[reply_of] for each in replies[:4])
        offsets, is_batch = layout.head["queue_offset"], (layout.head["sys_flag"] & NEED_UNWRAP) != 0
        # No checksum protects an offset. If one bit is wrong, the message would seem to be outside the range.
        following = np.where(np.roll(reply_of, -1) == reply_of, np.roll(offsets, -1), ends)
        following[-1:] = ends[-1:]
        wrong = ~is_batch & ((offsets >= following) | ((offsets < lows) & (offsets + 1 != following)))
        errors: dict[int, str] = {}
        for reply in np.unique(reply_of[wrong]).tolist():
            low, end, rows = replies[0][reply], replies[2][reply], np.flatnonzero((reply_of == reply) & ~is_batch)
            true = true_offsets(offsets[rows].tolist(), low, end)
            if not true:
                queue = self._origins[replies[3][reply]].queue
                raise ProtocolError(f"{queue}: the offsets of messages from {low} to {end - 1} contradict each other")
            for row in rows[offsets[rows] != true].tolist():
                errors[row] = f"its stored offset {offsets[row]} contradicts its place in the queue"
            offsets[rows] = true
        # a batch that cannot be unpacked may start before the range, although some of its messages are in the range
        taken = ((lows <= offsets) | is_batch) & (offsets < highs)
        if any(origin.tags for origin in self._origins):
            present = PropertyArrays(layout.properties()).column(TAGS).to_pylist()
            wanted = [self._origins[place].tags for place in origins.tolist()]
            fits = [not tags or tag in tags for tag, tags in zip(present, wanted, strict=True)]
            taken &= np.array(fits, np.bool_) | is_batch  # a batch that was not unpacked has no tag
        if not taken.all():
            layout, origins = _Layout(data, starts[taken]), origins[taken]
            layout.head["queue_offset"] = offsets[taken]
            errors = {new: errors[row] for new, row in enumerate(np.flatnonzero(taken).tolist()) if row in errors}
        decoded = DecodedRecords(layout, self._origins, origins, errors, check_crc=check_crc)
        if decoded.errors and not permissive:
            row, reason = next(iter(decoded.errors.items()))
            place = f"{self._origins[origins[row]].queue}: the message at offset {layout.head['queue_offset'][row]}"
            raise ProtocolError(f"{place} is corrupt: {reason}; {_REMEDY}")
        return decoded


class _Layout:
    """The positions of all fields of the records that start at `starts` in `data`."""

    def __init__(self, data: bytes, starts: Ints) -> None:
        self.data = data
        self.starts = starts
        self.head = self.tail = items_at_positions(data, _WHOLE, starts)
        is_v2 = self.head["magic"] == MAGIC_V2
        flags = self.head["sys_flag"]
        self.born_long = (flags & BORN_HOST_V6) != 0
        self.store_long = (flags & STORE_HOST_V6) != 0
        self.any_long = bool((flags & _HOSTS_V6).any())
        self.born_hosts = starts + _HEAD.itemsize
        self.store_timestamps = self.born_hosts + _host_bytes(self.born_long)
        self.store_hosts = self.store_timestamps + _LONG.itemsize
        tails = self.store_hosts + _host_bytes(self.store_long)
        self.ends = starts + self.head["store_size"].astype(np.int64)
        self.body_starts = tails + _TAIL.itemsize
        if self.any_long:
            self.tail = items_at_positions(data, _TAIL, tails)
        self.body_ends = self.body_starts + self.tail["body_size"]
        octets = np.frombuffer(data, np.uint8)
        topic_sizes = octets[self.body_ends].astype(np.int64)
        self.topic_starts = self.body_ends + 1
        if is_v2.any():
            topic_sizes[is_v2] = topic_sizes[is_v2] << 8 | octets[self.topic_starts[is_v2]]
            self.topic_starts[is_v2] += 1
        self.topic_ends = self.topic_starts + topic_sizes
        sizes = octets[self.topic_ends].astype(np.int64) << 8 | octets[self.topic_ends + 1]
        self.property_starts = self.topic_ends + 2
        self.property_ends = self.property_starts + sizes

    def properties(self) -> pa.Array:
        return slice_bytes(self.data, self.property_starts, self.property_ends)


class DecodedRecords:
    """The decoded messages, one in each row. `bodies` are decompressed. `errors` says, by row, why a body is null."""

    def __init__(
        self, layout: _Layout, origins: list[QueueOrigin], origin_of: Ints, errors: dict[int, str], *, check_crc: bool
    ) -> None:
        self.queues = [origin.queue for origin in origins]
        """The queues of the messages. A queue may occur more than once."""
        self._queue_of = origin_of
        self._layout = layout
        self.errors = errors
        stored = slice_bytes(layout.data, layout.body_starts, layout.body_ends)
        if check_crc:
            self._check_crc(stored)
        self._check_flags()
        self.bodies = self._decode_bodies(stored)

    def __len__(self) -> int:
        return len(self._layout.starts)

    def fixed_size_field(self, name: str) -> Array:
        """Return a fixed-size field of all messages by its name, in native byte order."""
        layout = self._layout
        if name == "store_timestamp" and layout.any_long:
            values = items_at_positions(layout.data, _LONG, layout.store_timestamps)
        else:
            values = (layout.tail if name in (_TAIL.names or ()) else layout.head)[name]
        return values.astype(values.dtype.newbyteorder("="))

    def repeat_by_queue(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Return for each message the value of its queue; `values` are in the order of `queues`."""
        if len(values) == 1:
            return constant_array(values[0], len(self), kind)
        return pa.array(values, kind).take(pa.array(self._queue_of))

    def topics(self) -> pa.Array:
        data, starts, ends = self._layout.data, self._layout.topic_starts, self._layout.topic_ends
        name = common_slice(data, starts, ends)
        if name is None:
            return to_strings(slice_bytes(data, starts, ends))
        return constant_array(name.decode("utf-8", "replace"), len(self), pa.string())

    def properties(self) -> pa.Array:
        """Return the encoded properties of each message as bytes; `PropertyArrays` decodes them."""
        return self._layout.properties()

    def hosts(self, name: str) -> Array | list[bytes]:
        """Return `born_host` or `store_host` of each message as an 8-byte number; as bytes if any host is IPv6."""
        layout = self._layout
        if not layout.any_long:
            return layout.head[name]
        starts, long = (
            (layout.born_hosts, layout.born_long) if name == "born_host" else (layout.store_hosts, layout.store_long)
        )
        ends = starts + _host_bytes(long)
        return [layout.data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def _check_crc(self, stored: pa.Array) -> None:
        found = np.fromiter(map(crc32, values_without_copy(stored)), np.uint32, len(stored))
        # Java stores 31 bits of the CRC
        wrong = np.flatnonzero((found ^ self._layout.head["body_crc"]) & 0x7FFFFFFF)
        self.errors |= dict.fromkeys(wrong.tolist(), "the CRC of its body does not match")

    def _check_flags(self) -> None:
        layout = self._layout
        for row in np.flatnonzero(layout.head["sys_flag"] & (NEED_UNWRAP | ~KNOWN_FLAGS)).tolist():
            if row not in self.errors:
                self.errors[row] = unreadable_reason(layout.data[layout.starts[row] : layout.ends[row]])

    def _decode_bodies(self, stored: pa.Array) -> pa.Array:
        flags = self._layout.head["sys_flag"]
        packed = np.flatnonzero(flags & COMPRESSED).tolist()
        if not packed and not self.errors:
            return stored
        bodies: list[bytes | None] = stored.to_pylist()
        for row in packed:
            if row not in self.errors:
                try:
                    bodies[row] = decompress(bodies[row] or b"", int(flags[row]))
                except ProtocolError as error:
                    self.errors[row] = str(error)
        for row in self.errors:
            bodies[row] = None
        return pa.array(bodies, pa.binary())


def _host_bytes(is_long: Array) -> Ints:
    sizes: Ints = np.where(is_long, V6_BYTES, V4_BYTES)
    return sizes
