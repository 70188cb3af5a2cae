"""Conversion of a broker's pop times to this process's clock: the invisible time of messages starts at the pop."""

from __future__ import annotations

from math import inf
from typing import Final

KEEP_SECONDS: Final = 60.0  # a measured clock difference is valid for one to two times so long
PRECISION_SECONDS: Final = 0.002  # brokers report whole milliseconds


class PopTime:
    """Converts a broker's times to this process's monotonic clock.

    A response may be read long after its messages were popped: on a slow network, or if this process was suspended. It
    contains the time of the pop by the broker's clock, which may differ from the clock of this machine by any amount.
    No single response shows the difference, but the response that was read soonest after its pop comes close. So the
    converted time is too late by the network delay of that response, about a millisecond.

    If a broker's clock is set forward, the difference becomes smaller, which shows at once. If it is set back, that
    shows as soon as a pop would be older than its request. Until then, converted times are too early. That lasts two
    minutes at most, until the earlier difference is forgotten.
    """

    def __init__(self) -> None:
        self._since = -inf
        self._least = self._former = inf  # least differences in seconds: since `_since`, and in the period before

    def of(self, pop_time_ms: int, asked_at: float, read_at: float) -> float:
        """Return when the broker popped. All times except `pop_time_ms` are monotonic seconds."""
        pop_time = pop_time_ms / 1000
        took = read_at - pop_time
        if read_at - self._since >= KEEP_SECONDS:
            self._since, self._former, self._least = read_at, self._least, inf
        self._least = min(self._least, took)
        ahead = min(self._least, self._former)
        if asked_at - pop_time > ahead + PRECISION_SECONDS:
            self._least, self._former, ahead = took, inf, took
        return pop_time + ahead
