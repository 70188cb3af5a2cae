"""The index of one queue: the positions of its messages (`ConsumeQueue.java`, `BatchConsumeQueue.java`)."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple


class QueueEntry(NamedTuple):
    """The index entry of a message: its commit log offset and size, its tag's hash, its store time in milliseconds."""

    commit_log_offset: int
    size: int
    tags_code: int
    store_timestamp: int


class BatchEntry(NamedTuple):
    """The index entry of a record with its offsets, from `offset` to before `following`."""

    offset: int
    following: int
    commit_log_offset: int
    size: int
    tags_code: int


class ConsumeQueue:
    """Entries without gaps, from `min_offset` to before `max_offset`. They are columns: 32 bytes for each message.

    A batch that is stored as one record has one entry, which takes several offsets. Only a queue that ever had a batch
    has a column of offsets.
    """

    __slots__ = (
        "_commit_log_offsets", "_end", "_offsets", "_sizes", "_store_timestamps", "_tags_codes", "min_offset",
    )  # fmt: skip

    def __init__(self, min_offset: int = 0) -> None:
        self.min_offset = min_offset
        self._commit_log_offsets = array("q")
        self._sizes = array("q")
        self._tags_codes = array("q")
        self._store_timestamps = array("q")
        self._offsets: array[int] | None = None
        self._end = 0  # used with `_offsets`: the offset after the last one

    @property
    def max_offset(self) -> int:
        """The offset of the next message."""
        return self.min_offset + len(self._sizes) if self._offsets is None else self._end

    @property
    def has_batches(self) -> bool:
        """Whether an entry may take several offsets."""
        return self._offsets is not None

    def append(self, commit_log_offset: int, size: int, tags_code: int, store_timestamp: int, members: int = 1) -> None:
        """Add the entry of the next message, or of the next batch with so many members."""
        if members > 1 and self._offsets is None:
            self._end = self.max_offset
            self._offsets = array("q", range(self.min_offset, self._end))
        if self._offsets is not None:
            self._offsets.append(self._end)
            self._end += members
        self._commit_log_offsets.append(commit_log_offset)
        self._sizes.append(size)
        self._tags_codes.append(tags_code)
        self._store_timestamps.append(store_timestamp)

    def entry(self, offset: int) -> QueueEntry | None:
        """Return the entry at an offset; None if it is not kept."""
        at = self._position(offset)
        if not 0 <= at < len(self._sizes):
            return None
        return QueueEntry(
            self._commit_log_offsets[at], self._sizes[at], self._tags_codes[at], self._store_timestamps[at]
        )

    def entries(self, offset: int, most: int) -> list[QueueEntry]:
        """Return entries from an offset."""
        span = self._span(offset, most)
        columns = (
            self._commit_log_offsets[span],
            self._sizes[span],
            self._tags_codes[span],
            self._store_timestamps[span],
        )
        return list(map(QueueEntry, *columns))

    def records(self, offset: int, most: int) -> tuple[array[int], array[int]]:
        """Return commit log offsets and sizes from an offset."""
        span = self._span(offset, most)
        return self._commit_log_offsets[span], self._sizes[span]

    def tagged_records(self, offset: int, most: int) -> Iterator[tuple[int, int, int]]:
        """Return commit log offsets, sizes and hashes of tags from an offset."""
        span = self._span(offset, most)
        return zip(self._commit_log_offsets[span], self._sizes[span], self._tags_codes[span], strict=True)

    def batches(self, offset: int) -> Iterator[BatchEntry]:
        """Yield entries from the entry that contains the offset."""
        first = max(0, self._position(offset))
        for at in range(first, len(self._sizes)):
            begin, end = self._offset(at), self._offset(at + 1)
            yield BatchEntry(begin, end, self._commit_log_offsets[at], self._sizes[at], self._tags_codes[at])

    def after(self, offset: int) -> int:
        """Return the first offset after the entry that contains this offset."""
        return self._offset(self._position(offset) + 1)

    def newest_first(self, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return the commit log offsets of messages stored in a time span, both ends included."""
        first = bisect_left(self._store_timestamps, begin_ms)
        return reversed(self._commit_log_offsets[first : bisect_right(self._store_timestamps, end_ms)])

    def discard(self, count: int) -> None:
        """Remove the oldest entries."""
        self.min_offset = self._offset(count)
        for column in (self._commit_log_offsets, self._sizes, self._tags_codes, self._store_timestamps):
            del column[:count]
        if self._offsets is not None:
            del self._offsets[:count]

    def offset_by_time(self, timestamp_ms: int, *, upper: bool) -> int:
        """Find an offset by time, like MessageStore.offset_by_time."""
        if upper:
            return self._offset(max(0, bisect_right(self._store_timestamps, timestamp_ms) - 1))
        return self._offset(bisect_left(self._store_timestamps, timestamp_ms))

    def _position(self, offset: int) -> int:
        """Return the index of an offset's entry in the columns; an index outside of them if it is not kept."""
        if self._offsets is None:
            return offset - self.min_offset
        return bisect_right(self._offsets, offset) - 1 if offset < self._end else len(self._sizes)

    def _offset(self, position: int) -> int:
        """Return the first offset of the entry at an index; after the last entry, the next offset."""
        if self._offsets is None:
            return self.min_offset + position
        return self._offsets[position] if position < len(self._offsets) else self._end

    def _span(self, offset: int, most: int) -> slice:
        start = max(0, self._position(offset))
        return slice(start, start + most)
