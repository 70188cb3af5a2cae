"""The clock of consumers and clients, which tests can replace, and the delays before a request is tried again.

Consumers and clients use no other clock to read the time or to wait (tests/test_architecture.py). So a test that sets
the clock decides when timeouts and delays end.
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
        """Cancel the callback. No effect if it was already called."""


class Clock(Protocol):
    """A source of two times in seconds: `monotonic` for durations and waits, `wall` for display."""

    def monotonic(self) -> float:
        """Return seconds that never decrease. Only differences are meaningful."""

    def wall(self) -> float:
        """Return the seconds since 1970 (UTC). The value may jump when the machine's clock is set."""

    def sleep(self, seconds: float, /) -> Coroutine[Any, Any, None]:
        """Wait like asyncio.sleep, but with this clock."""

    def timeout(self, seconds: float | None, /) -> AbstractAsyncContextManager[object]:
        """Return a context manager like asyncio.timeout: a longer block raises TimeoutError; None sets no limit."""

    def wait(
        self, waited_for: Iterable[F], /, *, timeout: float | None = None, return_when: str = asyncio.ALL_COMPLETED
    ) -> Coroutine[Any, Any, tuple[set[F], set[F]]]:
        """Wait like asyncio.wait. Returns the done and the pending awaitables."""

    def call_at(self, monotonic: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Schedule a callback in the running event loop. It is called when `monotonic()` reaches this value."""

    def call_later(self, delay_seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback in the running event loop after a delay, for example before a retry."""


async def wait_within(clock: Clock, seconds: float | None, event: Awaitable[object]) -> bool:
    """Wait for `event`, for at most this many seconds of the clock. Returns whether `event` finished in time."""
    try:
        async with clock.timeout(seconds):
            await event
    except TimeoutError:
        return False
    return True


_Key = tuple[Clock, float]  # the clock and length of a tick
_Wait = tuple["asyncio.Future[None]", Callable[[], bool]]
_Ticks = dict[_Key, list[_Wait]]  # the waits for the next tick
_TICKS: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, _Ticks]()
TASKS_PER_TURN: Final = 50  # tasks that a tick wakes before the event loop handles other events


async def wait_for_tick(clock: Clock, seconds: float, skip: Callable[[], bool] = lambda: False) -> None:
    """Wait for the next tick: the end of a timer of `seconds` that all waits of this length in the loop share.

    The wait may be shorter than `seconds`. If `skip` returns True at the tick, the wait continues until the next tick.

    Use it for periodic checks. A process may have hundreds of groups with several checks each. A timer for each check
    would cost more than the check itself, and so would waking a task that finds nothing to do.
    """
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    _add(_TICKS.setdefault(loop, {}), (clock, seconds), (future, skip))
    await future


def _add(ticks: _Ticks, key: _Key, wait: _Wait) -> None:
    if key not in ticks:
        ticks[key] = []
        clock, seconds = key
        clock.call_at(clock.monotonic() + seconds, lambda: _wake(ticks, key, ticks.pop(key)))
    ticks[key].append(wait)


def _wake(ticks: _Ticks, key: _Key, waits: list[_Wait]) -> None:
    for future, skip in waits[:TASKS_PER_TURN]:
        if future.done():
            continue
        try:
            is_over = not skip()
        except Exception as error:  # noqa: BLE001 only the task that gave this `skip` fails
            future.set_exception(error)
            continue
        if is_over:
            future.set_result(None)
        else:
            _add(ticks, key, (future, skip))
    if len(waits) > TASKS_PER_TURN:
        asyncio.get_running_loop().call_soon(_wake, ticks, key, waits[TASKS_PER_TURN:])


class SystemClock:
    """The machine's clock. `monotonic` and `wall` are functions of `time` without a wrapper: each batch calls them."""

    __slots__ = ()
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(asyncio.sleep)
    timeout = staticmethod(asyncio.timeout)
    wait = staticmethod(asyncio.wait)

    @staticmethod
    def call_at(monotonic: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Schedule a callback with the event loop's clock, which may have another zero than `monotonic`."""
        return asyncio.get_running_loop().call_later(monotonic - time.monotonic(), callback, *args)

    @staticmethod
    def call_later(delay_seconds: float, callback: Callable[..., object], *args: Any) -> None:
        asyncio.get_running_loop().call_later(delay_seconds, callback, *args)


JITTER_RANDOM: Final = random.Random()  # a separate generator, because the program may have seeded the shared one
_MAX_DOUBLINGS: Final = 10


def backoff_seconds(first_seconds: float, times: int, most_seconds: float) -> float:
    """Return the delay after this many failures in a row. It doubles with each failure, up to `most_seconds`."""
    return min(first_seconds * float(1 << min(times - 1, _MAX_DOUBLINGS)), most_seconds)


def with_jitter(seconds: float, least: float = 0.75, most: float = 1.25) -> float:
    """Return the delay with random jitter, so that clients of one broker do not all retry at once."""
    return seconds * JITTER_RANDOM.uniform(least, most)
