"""The clock that rmqd's parts use, so that tests can replace it, and delays between attempts of a failed request.

Consumers and clients read the time and wait only with this clock (tests/test_architecture.py). So a test that sets the
clock decides when timeouts and delays end.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

F = TypeVar("F", bound="asyncio.Future[Any]")


def suspended_seconds() -> float:
    """Return how long the machine was suspended since boot. The monotonic clock does not count that time.

    Rounded to whole seconds: the two clocks are read one after the other, and without rounding a sum with the monotonic
    clock could decrease.
    """
    return max(0.0, round(_boottime() - time.monotonic()))


_boottime = partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the call. No effect if it was already made."""
        ...


class Clock(Protocol):
    """Two times in seconds: one for durations and waits, and one for display."""

    def monotonic(self) -> float:
        """Return seconds that never decrease. Only differences are meaningful."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 (UTC); may jump when the machine's clock is set."""
        ...

    def sleep(self, seconds: float, /) -> Coroutine[Any, Any, None]:
        """Wait like asyncio.sleep, but with this clock."""
        ...

    def timeout(self, seconds: float | None, /) -> AbstractAsyncContextManager[object]:
        """Return a block like asyncio.timeout: it raises TimeoutError if it takes longer; None sets no limit."""
        ...

    def wait(
        self, waited_for: Iterable[F], /, *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED
    ) -> Coroutine[Any, Any, tuple[set[F], set[F]]]:
        """Wait like asyncio.wait. Returns the done and the pending awaitables."""
        ...

    def call_at(self, monotonic: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Schedule a callback in the running event loop for when `monotonic()` reaches this value."""
        ...

    def call_later(self, delay_seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback in the running event loop after a delay that RocketMQ prescribes, such as before a
        retry.
        """
        ...


async def wait_within(clock: Clock, seconds: float | None, event: Awaitable[object]) -> bool:
    """Wait for `event`, for at most this many seconds of the clock. Returns whether it finished in time."""
    try:
        async with clock.timeout(seconds):
            await event
    except TimeoutError:
        return False
    return True


Ticks = dict[tuple[Clock, float], list["asyncio.Future[None]"]]  # the waits for the next tick of a clock, by length
_TICKS: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, Ticks]()
WOKEN_AT_ONCE: Final = 50  # tasks between two turns of the event loop


async def tick(clock: Clock, seconds: float) -> None:
    """Wait for at most this many seconds of the clock. All waits of this length in an event loop share one timer.

    For periodic checks: a process may have hundreds of groups, and each of them has several checks. A timer for each
    wait would cost more than the check.
    """
    loop, key = asyncio.get_running_loop(), (clock, seconds)
    ticks = _TICKS.setdefault(loop, {})
    if key not in ticks:
        ticks[key] = []
        clock.call_at(clock.monotonic() + seconds, lambda: _wake(ticks.pop(key)))
    future = loop.create_future()
    ticks[key].append(future)
    await future


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting[:WOKEN_AT_ONCE]:
        if not future.done():
            future.set_result(None)
    if len(waiting) > WOKEN_AT_ONCE:
        asyncio.get_running_loop().call_soon(_wake, waiting[WOKEN_AT_ONCE:])


class SystemClock:
    """The machine's clock. `monotonic` and `wall` are the system's own functions, because every batch reads the
    time.
    """

    __slots__ = ()
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(asyncio.sleep)
    timeout = staticmethod(asyncio.timeout)
    wait = staticmethod(asyncio.wait)

    @staticmethod
    def call_at(monotonic: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Use the event loop's time, whose zero may differ from that of `monotonic`."""
        return asyncio.get_running_loop().call_later(monotonic - time.monotonic(), callback, *args)

    @staticmethod
    def call_later(delay_seconds: float, callback: Callable[..., object], *args: Any) -> None:
        asyncio.get_running_loop().call_later(delay_seconds, callback, *args)


RANDOM: Final = random.Random()  # a separate generator, because the program may have seeded the shared one
_MAX_DOUBLINGS: Final = 10


def doubled(first_seconds: float, times: int, most_seconds: float) -> float:
    """Return the delay after this many failures in a row. It doubles with each failure, up to `most_seconds`."""
    return min(first_seconds * float(1 << min(times - 1, _MAX_DOUBLINGS)), most_seconds)


def spread(seconds: float, least: float = 0.75, most: float = 1.25) -> float:
    """Return the delay with random jitter, so that clients of one broker do not all retry at once."""
    return seconds * RANDOM.uniform(least, most)
