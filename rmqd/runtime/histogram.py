"""Histograms that are cheap enough to update for every message. Their snapshots can be pickled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HANDLER_DURATION_BOUNDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900,
)  # fmt: skip
"""The bounds for durations of handler calls."""


@dataclass(frozen=True, slots=True)
class HistogramSnapshot:
    """The counts of a Histogram at one moment.

    `counts[i]` is the number of values above `bounds[i - 1]`, up to and including `bounds[i]`. One more count at the
    end is for values above the last bound. `sum` is the total of the values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    def merge(self, other: HistogramSnapshot) -> HistogramSnapshot:
        """Return the sum of both snapshots. Raises ValueError if their bounds differ."""
        if self.bounds != other.bounds:
            raise ValueError(f"histograms with bounds {self.bounds} and {other.bounds} cannot be added")
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return HistogramSnapshot(self.bounds, counts, self.sum + other.sum)

    def since(self, earlier: HistogramSnapshot) -> HistogramSnapshot:
        """Return the values observed after `earlier`, a snapshot of the same histogram. Counts that fell become 0."""
        if self.bounds != earlier.bounds:
            return self
        pairs = zip(self.counts, earlier.counts, strict=True)
        counts = tuple(max(0, now - before) for now, before in pairs)
        return HistogramSnapshot(self.bounds, counts, max(0.0, self.sum - earlier.sum))

    def quantile(self, share: float) -> float | None:
        """Return the value that this share (0 to 1) of the observed values does not exceed; None if there are none.

        Interpolates inside a range, as Prometheus does. Above the last bound it returns that bound.
        """
        rank, below = share * self.count, 0
        if not self.count:
            return None
        for i, count in enumerate(self.counts):
            if count and below + count >= rank:
                if i == len(self.bounds):
                    return self.bounds[-1]
                low = self.bounds[i - 1] if i else 0.0
                return low + (self.bounds[i] - low) * max(0.0, rank - below) / count
            below += count
        return self.bounds[-1]


class Histogram:
    """Observes values and sorts them into ranges. An upper bound belongs to its range, as in Prometheus."""

    __slots__ = ("_counts", "_snapshot", "_sum", "bounds")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        if any(low >= high for low, high in zip(self.bounds, self.bounds[1:], strict=False)):
            raise ValueError(f"histogram bounds are not in ascending order: {self.bounds}")
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0
        self._snapshot: HistogramSnapshot | None = None  # None if a value was observed since the last snapshot

    def observe(self, value: float, count: int = 1) -> None:
        """Count `value`, `count` times."""
        self._snapshot = None
        self._counts[bisect_left(self.bounds, value)] += count
        self._sum += value * count

    def snapshot(self) -> HistogramSnapshot:
        """Return the counts so far. The immutable snapshot is reused until the next value is observed."""
        if self._snapshot is None:
            self._snapshot = HistogramSnapshot(self.bounds, tuple(self._counts), self._sum)
        return self._snapshot
