"""The clock that rmqd's parts are given, so that tests can replace it.

Consumers and clients use only this clock to read the time and to wait for a time (tests/test_architecture.py). So a
test that sets the clock decides when their timeouts and delays end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Protocol, TypeVar

F = TypeVar("F", bound="asyncio.Future[Any]")


def suspended_seconds() -> float:
    """For how long the machine was suspended since its start. The monotonic clock does not count that time.

    In whole seconds: the two clocks are read one after the other, and what passes in between is not to be seen, or a
    sum with the monotonic clock could go back.
    """
    return max(0.0, round(_boottime() - time.monotonic()))


_boottime = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


class Timer(Protocol):
    """A callback that waits for its time."""

    def cancel(self) -> None:
        """Cancel the call; no effect if it was made already."""
        ...


class Clock(Protocol):
    """Two times in seconds: one for durations and waits, and one that people read."""

    def monotonic(self) -> float:
        """Seconds that never go back. Only differences of it have a meaning."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 (UTC); may jump when the machine's clock is set."""
        ...

    def sleep(self, seconds: float, /) -> Coroutine[Any, Any, None]:
        """Wait for so many seconds of this clock, as asyncio.sleep does of the real one."""
        ...

    def timeout(self, seconds: float | None, /) -> AbstractAsyncContextManager[object]:
        """As asyncio.timeout: the block raises TimeoutError if it takes longer; None sets no limit."""
        ...

    def wait(
        self, waited_for: Iterable[F], /, *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED
    ) -> Coroutine[Any, Any, tuple[set[F], set[F]]]:
        """As asyncio.wait: which of these are done, and which are not when the time is over."""
        ...

    def call_at(self, monotonic: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Have the running event loop call back when `monotonic()` reaches this value."""
        ...

    def call_later(self, delay_seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Have the running event loop call back after a delay that RocketMQ prescribes, such as before a retry."""
        ...


async def wait_within(clock: Clock, seconds: float | None, event: Awaitable[object]) -> bool:
    """Wait for `event`, for at most so many seconds of the clock. Returns whether it came in time."""
    try:
        async with clock.timeout(seconds):
            await event
    except TimeoutError:
        return False
    return True


class SystemClock:
    """The machine's clock: `monotonic` and `wall` are the system's own functions, as every batch reads the time."""

    __slots__ = ()
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(asyncio.sleep)
    timeout = staticmethod(asyncio.timeout)
    wait = staticmethod(asyncio.wait)

    @staticmethod
    def call_at(monotonic: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """By the event loop's own time, which need not begin where `monotonic` does."""
        return asyncio.get_running_loop().call_later(monotonic - time.monotonic(), callback, *args)

    @staticmethod
    def call_later(delay_seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """By the event loop's own time."""
        asyncio.get_running_loop().call_later(delay_seconds, callback, *args)
