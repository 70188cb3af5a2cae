"""A set of offsets of one queue."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class Spans:
    """A set of offsets, stored as ranges `low <= offset < high` with gaps between them."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        for low, high in ranges:
            self.add(low, high)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._lows, self._highs, strict=True)

    def __bool__(self) -> bool:
        return bool(self._lows)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._lows, offset) - 1
        return at >= 0 and offset < self._highs[at]

    def add(self, low: int, high: int | None = None) -> None:
        """Add the offsets from `low` up to, but not including, `high`; without `high`, only `low`."""
        high = low + 1 if high is None else high
        if low >= high:
            return
        first, last = bisect_left(self._highs, low), bisect_right(self._lows, high)  # ranges that touch the new one
        if first < last:
            low, high = min(low, self._lows[first]), max(high, self._highs[last - 1])
        self._lows[first:last], self._highs[first:last] = [low], [high]

    def reach(self, offset: int) -> int:
        """Return the first offset from `offset` on that is not in the set."""
        at = bisect_right(self._lows, offset) - 1
        return max(offset, self._highs[at]) if at >= 0 else offset

    def count(self, low: int, high: int) -> int:
        """Return how many of the offsets from `low` up to, but not including, `high` are in the set."""
        first, last = bisect_right(self._highs, low), bisect_left(self._lows, high)
        return sum(max(0, min(high, self._highs[at]) - max(low, self._lows[at])) for at in range(first, last))
