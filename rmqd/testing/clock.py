"""A clock that jumps: delays of a broker and of a consumer end at once when nothing else is left to do."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any

from rmqd.clock import SystemClock


class JumpingClock(SystemClock):
    """The machine's clock plus the skipped time.

    Only `wall` and the callbacks of `call_later` jump. `monotonic`, and everything that waits with it, is the machine's
    own: heartbeats, locks, deadlines and durations of handler calls need real time.
    """

    def __init__(self) -> None:
        self.jumped_seconds = 0.0
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def wall(self) -> float:
        """Return seconds since 1970 by this clock. May be called in any thread."""
        return time.time() + self.jumped_seconds

    def call_later(  # type: ignore[override]  # by this clock, not by the loop's
        self, delay_seconds: float, callback: Callable[..., object], *args: Any
    ) -> None:
        """Call back when this clock has advanced by the delay. The clock jumps there, so no real time passes."""
        due = self.wall() + delay_seconds
        heapq.heappush(self._timers, (due, next(self._order), lambda: callback(*args)))

    def next_due(self) -> float | None:
        """Return when the first callback is due, in seconds since 1970; None if none waits."""
        return self._timers[0][0] if self._timers else None

    def jump_to(self, wall: float) -> None:
        """Jump to a time, unless it has passed already, and make the calls that are due then."""
        self.jumped_seconds += max(0.0, wall - self.wall())
        while self._timers and self._timers[0][0] <= self.wall():
            heapq.heappop(self._timers)[2]()
