"""The index of one queue: where each of its messages is (`ConsumeQueue.java`)."""

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


class ConsumeQueue:
    """Entries without gaps, from `min_offset` to before `max_offset`. They are columns: 32 bytes for each message."""

    __slots__ = ("_commit_log_offsets", "_sizes", "_store_timestamps", "_tags_codes", "min_offset")

    def __init__(self, min_offset: int = 0) -> None:
        self.min_offset = min_offset
        self._commit_log_offsets = array("q")
        self._sizes = array("q")
        self._tags_codes = array("q")
        self._store_timestamps = array("q")

    @property
    def max_offset(self) -> int:
        """The offset that the next message gets."""
        return self.min_offset + len(self._sizes)

    def append(self, commit_log_offset: int, size: int, tags_code: int, store_timestamp: int) -> None:
        """Add the entry of the next message."""
        self._commit_log_offsets.append(commit_log_offset)
        self._sizes.append(size)
        self._tags_codes.append(tags_code)
        self._store_timestamps.append(store_timestamp)

    def entry(self, offset: int) -> QueueEntry | None:
        """The entry at an offset; None if it is not kept."""
        at = offset - self.min_offset
        if not 0 <= at < len(self._sizes):
            return None
        return QueueEntry(
            self._commit_log_offsets[at], self._sizes[at], self._tags_codes[at], self._store_timestamps[at]
        )

    def entries(self, offset: int, most: int) -> list[QueueEntry]:
        """Entries from an offset on."""
        span = self._span(offset, most)
        columns = (
            self._commit_log_offsets[span],
            self._sizes[span],
            self._tags_codes[span],
            self._store_timestamps[span],
        )
        return list(map(QueueEntry, *columns))

    def records(self, offset: int, most: int) -> tuple[array[int], array[int]]:
        """Commit log offsets and sizes from an offset on."""
        span = self._span(offset, most)
        return self._commit_log_offsets[span], self._sizes[span]

    def tagged_records(self, offset: int, most: int) -> Iterator[tuple[int, int, int]]:
        """Commit log offsets, sizes and hashes of tags from an offset on."""
        span = self._span(offset, most)
        return zip(self._commit_log_offsets[span], self._sizes[span], self._tags_codes[span], strict=True)

    def newest_first(self, begin_ms: int, end_ms: int) -> Iterator[int]:
        """The commit log offsets of messages stored in a span of time, with both ends."""
        first = bisect_left(self._store_timestamps, begin_ms)
        return reversed(self._commit_log_offsets[first : bisect_right(self._store_timestamps, end_ms)])

    def discard(self, count: int) -> None:
        """Forget the oldest entries."""
        for column in (self._commit_log_offsets, self._sizes, self._tags_codes, self._store_timestamps):
            del column[:count]
        self.min_offset += count

    def offset_by_time(self, timestamp_ms: int, *, upper: bool) -> int:
        """Find an offset by time, as MessageStore.offset_by_time does."""
        if upper:
            return self.min_offset + max(0, bisect_right(self._store_timestamps, timestamp_ms) - 1)
        return self.min_offset + bisect_left(self._store_timestamps, timestamp_ms)

    def _span(self, offset: int, most: int) -> slice:
        start = max(0, offset - self.min_offset)
        return slice(start, start + most)
