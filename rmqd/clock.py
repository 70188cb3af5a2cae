"""Time, passed in so that tests can turn it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two times in seconds: one to measure durations with, one that people read."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 (UTC); may jump when the machine's clock is set."""
        ...


class SystemClock:
    """The machine's clock: `monotonic` and `wall` are the system's own functions, as every batch reads the time."""

    __slots__ = ()
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
