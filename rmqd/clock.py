"""Time, passed in so that tests can turn it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol


def suspended_seconds() -> float:
    """For how long the machine was suspended since it was started, which its monotonic clock leaves out."""
    return _boottime() - time.monotonic()


_boottime = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


class Clock(Protocol):
    """Two times in seconds: one to measure durations with, one that people read."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 (UTC); may jump when the machine's clock is set."""
        ...

    def call_later(self, delay_seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Have the running event loop call back so much later; for what RocketMQ's parameters say is to wait."""
        ...


class SystemClock:
    """The machine's clock: `monotonic` and `wall` are the system's own functions, as every batch reads the time."""

    __slots__ = ()
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    @staticmethod
    def call_later(delay_seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """By the event loop's own time."""
        asyncio.get_running_loop().call_later(delay_seconds, callback, *args)
