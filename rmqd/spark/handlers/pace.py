"""Sizes micro-batches: so that each lasts a few seconds, and a rate limit is kept. Pure.

Short batches are good for a stop, which waits for the one under way, and after a crash, when the last one is repeated.
Long batches are good for throughput: Spark takes some 200 ms for each, and 2 s on a busy machine.
"""

from __future__ import annotations

from typing import Final

TARGET_SECONDS: Final = 2.0
GROWTH: Final = 8
LATE: Final = 2  # times the target
CAREFUL_GROWTH: Final = 2  # where the last batch took longer than is wished, and it is not known why
LARGEST: Final = 10_000_000
_MEMORY: Final = 0.6  # what a batch counts for by the next one
_LEAST_SPREAD: Final = 0.05  # of the batches' sizes, for what each message takes to be told from what a batch takes


class Pace:
    """Sizes batches by how long the last ones took. Times are monotonic seconds."""

    def __init__(
        self, least: int, *, fixed: int = 0, per_second: int = 0, target_seconds: float = TARGET_SECONDS
    ) -> None:
        """`fixed` messages (0: as many as are handled in `target_seconds`, `least` at least), at most `per_second`."""
        self._least = least
        self._size = fixed or least
        self._is_fixed = bool(fixed)
        self._target = target_seconds
        self._per_second = per_second
        self._allowed = float(per_second)
        self._counted_at: float | None = None
        self._began: tuple[int, float] | None = None
        self._costs = _Costs()
        self._halves = False

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

    def ended(self, now: float, seconds: float | None = None) -> None:
        """It is done, after so many `seconds` where that is known better than by `now`."""
        if self._began is None:
            return
        count, began_at = self._began
        self._began = None
        if seconds is None:
            seconds = now - began_at
        is_late = seconds > LATE * self._target
        if self._is_fixed or not count or (is_late and self._costs.is_new):  # the first pays for Spark's processes
            self._costs.is_new = False
            return
        self._costs.learn(count, seconds)
        fits = self._costs.fit(self._target)
        if fits < self._size or (is_late and self._costs.are_told):
            # a late one is followed by half of what seems to fit, every other time: whose fault it was shows by that
            self._halves = is_late and not self._halves
            if is_late or seconds > self._target:
                self._size = max(self._least, min(fits, self._size * CAREFUL_GROWTH) // (2 if self._halves else 1))
        elif count >= self._size:
            self._size = min(fits, self._size * (CAREFUL_GROWTH if is_late else GROWTH), LARGEST)


class _Costs:
    """Divides the duration of batches into a fixed part for each batch, and a part for each message.

    It is a line through the last batches, by least squares, in which older ones count less and less. While their sizes
    are alike the two parts cannot be told apart, and the last known fixed part is kept.
    """

    def __init__(self) -> None:
        self.is_new = True
        self._own_seconds: float | None = None
        self._weight = self._n = self._t = self._nn = self._nt = 0.0

    @property
    def are_told(self) -> bool:
        """Whether they could be told from each other."""
        return self._own_seconds is not None

    def learn(self, count: int, seconds: float) -> None:
        """A batch of so many messages took so long."""
        self.is_new = False
        self._weight = self._weight * _MEMORY + 1
        self._n = self._n * _MEMORY + count
        self._t = self._t * _MEMORY + seconds
        self._nn = self._nn * _MEMORY + count * count
        self._nt = self._nt * _MEMORY + count * seconds
        n, t = self._n / self._weight, self._t / self._weight
        variance = self._nn / self._weight - n * n
        if variance > (_LEAST_SPREAD * n) ** 2:
            each = max(0.0, (self._nt / self._weight - n * t) / variance)
            self._own_seconds = max(0.0, t - each * n)

    def fit(self, seconds: float) -> int:
        """How many messages are handled in so many seconds."""
        n, t = self._n / self._weight, self._t / self._weight
        # where nothing tells them apart yet, all is taken for the batch's own
        each = 0.0 if self._own_seconds is None else max(0.0, t - self._own_seconds) / n
        return LARGEST if each * LARGEST <= seconds else max(1, int(seconds / each))
