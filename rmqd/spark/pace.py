"""How many messages the next micro-batch takes: so many that it lasts a few seconds, and that a rate is kept to. Pure.

A batch that is under way when a group is stopped is waited for, and one that a crash cuts short is repeated whole: both
want short batches. Spark takes some 200 ms for each, which wants long ones.
"""

from __future__ import annotations

from typing import Final

TARGET_SECONDS: Final = 2.0
GROWTH: Final = 8
LARGEST: Final = 10_000_000


class Pace:
    """Sizes batches by how long the last one took. Times are monotonic seconds."""

    def __init__(
        self, least: int, *, fixed: int = 0, per_second: int = 0, target_seconds: float = TARGET_SECONDS
    ) -> None:
        """`fixed` messages (0: as many as fit into `target_seconds`, and `least` at least), at most `per_second`."""
        self._least = least
        self._size = fixed or least
        self._is_fixed = bool(fixed)
        self._target = target_seconds
        self._per_second = per_second
        self._allowed = float(per_second)
        self._counted_at: float | None = None
        self._began: tuple[int, float] | None = None

    def size(self, now: float) -> int:
        """How many messages the next batch may have; 0 where the rate has none left for now."""
        if not self._per_second:
            return self._size
        if self._counted_at is not None:
            # an idle time gives no right to a burst
            most = max(1.0, self._per_second * self._target)
            self._allowed = min(most, self._allowed + (now - self._counted_at) * self._per_second)
        self._counted_at = now
        return min(self._size, int(self._allowed)) if self._allowed >= 1 else 0

    def began(self, count: int, now: float) -> None:
        """A batch of so many messages begins."""
        self._allowed -= count
        self._began = count, now

    def ended(self, now: float) -> None:
        """It is done."""
        if self._began is None:
            return
        count, began_at = self._began
        self._began = None
        seconds = max(now - began_at, 0.001)
        if self._is_fixed or not count:
            return
        fits = int(count * self._target / seconds)
        if seconds > self._target:
            self._size = max(self._least, min(self._size, fits))
        elif count >= self._size:  # a smaller one says little: Spark's own time is most of it
            self._size = min(max(self._size, fits), self._size * GROWTH, LARGEST)
