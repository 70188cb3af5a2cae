"""When a broker popped what a reply brings: that long ago its messages began to be hidden."""

from __future__ import annotations

from math import inf
from typing import Final

KEEP_SECONDS: Final = 60.0  # a difference between two clocks counts for so long, or twice that
PRECISION_SECONDS: Final = 0.002  # brokers tell whole milliseconds


class PopTime:
    """Puts a broker's times on this process's monotonic clock.

    A reply may be read long after its messages were popped: on a slow network, or where this process was suspended. It
    has the pop's time by the broker's clock, which may show any other time than that of this machine. How far the two
    clocks are apart, no single reply tells; but the reply that was read the soonest after its pop comes close. So a pop
    is dated late by as much as that reply was under way, which is a millisecond or so.

    A broker's clock that is set forward shows at once, in a smaller difference. One that is set back shows where a pop
    would be older than its request; else pops are dated too early until the former difference is forgotten, after a
    minute or two.
    """

    def __init__(self) -> None:
        self._since = -inf
        self._least = self._former = inf  # in seconds: since `_since`, and in the time before

    def of(self, pop_time_ms: int, asked_at: float, read_at: float) -> float:
        """When the broker popped, in monotonic seconds. The reply was `read_at` then, and its pop `asked_at`."""
        pop_time = pop_time_ms / 1000
        took = read_at - pop_time
        if read_at - self._since >= KEEP_SECONDS:
            self._since, self._former, self._least = read_at, self._least, inf
        self._least = min(self._least, took)
        ahead = min(self._least, self._former)
        if asked_at - pop_time > ahead + PRECISION_SECONDS:
            self._least, self._former, ahead = took, inf, took
        return pop_time + ahead
