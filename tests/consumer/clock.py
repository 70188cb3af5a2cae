"""A clock that tests turn by hand."""

from __future__ import annotations

from rmqd.clock import SystemClock


class ManualClock:
    """Stands still until `advance`."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self.now = 1000.0
        self._wall_offset = wall - self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self._wall_offset

    call_later = staticmethod(SystemClock.call_later)
