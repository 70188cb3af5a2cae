"""The index of one queue: where each of its messages is (`ConsumeQueue.java`)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Final, NamedTuple

_BY_TIME: Final = attrgetter("store_timestamp")


class QueueEntry(NamedTuple):
    """One message: its place and size in the commit log, the hash of its tag, its store time in milliseconds."""

    commit_log_offset: int
    size: int
    tags_code: int
    store_timestamp: int


class ConsumeQueue:
    """Entries without gaps, from `min_offset` up to `max_offset`."""

    __slots__ = ("_entries", "append", "min_offset")

    def __init__(self, min_offset: int = 0) -> None:
        self.min_offset = min_offset
        self._entries: list[QueueEntry] = []
        self.append = self._entries.append
        """Add the next message."""

    @property
    def max_offset(self) -> int:
        """What the next message gets."""
        return self.min_offset + len(self._entries)

    def entry(self, offset: int) -> QueueEntry | None:
        """The entry at an offset, if that is kept."""
        index = offset - self.min_offset
        return self._entries[index] if 0 <= index < len(self._entries) else None

    def entries(self, offset: int, most: int) -> list[QueueEntry]:
        """Entries from an offset on."""
        start = max(0, offset - self.min_offset)
        return self._entries[start : start + most]

    def stored_between(self, begin_ms: int, end_ms: int) -> list[QueueEntry]:
        """The entries of messages stored in this time, its ends included."""
        first = bisect_left(self._entries, begin_ms, key=_BY_TIME)
        return self._entries[first : bisect_right(self._entries, end_ms, key=_BY_TIME)]

    def discard(self, count: int) -> None:
        """Forget the oldest entries."""
        del self._entries[:count]
        self.min_offset += count

    def offset_by_time(self, timestamp_ms: int, *, upper: bool) -> int:
        """As MessageStore.offset_by_time."""
        if upper:
            return self.min_offset + max(0, bisect_right(self._entries, timestamp_ms, key=_BY_TIME) - 1)
        return self.min_offset + bisect_left(self._entries, timestamp_ms, key=_BY_TIME)
