"""A clock that tests advance by hand, next to real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from rmqd.runtime.clock import F
from tests.waiting import POLL_SECONDS, eventually

TURNS_PER_SECOND = 30
FLOW_SECONDS = 0.5  # how far flowing time advances between two polls
REAL_SECONDS = 10.0  # for other threads to finish after `until` has used its time


class _Timer:
    """A callback that waits for its time."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualClock:
    """A clock that only a test advances. Sleeps, timeouts and callbacks end in the order of their times.

    A test's clients and brokers use real sockets in the same event loop. So before the clock advances to the next
    timer, the loop runs some iterations, and more of them for a longer interval. A response needs about ten iterations,
    and a request must not run into a timeout of three seconds only because the test did not wait for the response.
    Iterations, unlike milliseconds, mean the same on a busy machine.
    """

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self.now = 1000.0
        self._wall_offset = wall - self.now
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self._wall_offset

    def turn(self, seconds: float) -> None:
        """Advance in one step. Waiting tasks run afterwards, as after a machine was suspended."""
        self._go_on_to(self.now + seconds)

    async def advance(self, seconds: float) -> None:
        """Advance from timer to timer. The tasks that a timer wakes run before the next timer is due."""
        end = self.now + seconds
        while self.now < end:
            await self._step(end)
        await self._let_others_run(1.0)

    async def until(self, condition: Callable[[], object], what: str, most: float = 120.0) -> None:
        """Advance until `condition` is true. Fails if that takes more than `most` seconds of this clock."""
        end = self.now + most
        await self._let_others_run(1.0)
        while not condition() and self.now < end:
            await self._step(min(end, self.now + 1.0))
        await eventually(condition, f"{what} (nor within {most:g} s of this clock)", REAL_SECONDS)

    @contextlib.asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Advance automatically, a hundred times as fast as real time, in step with the polls of `eventually`."""
        flow = asyncio.create_task(self._flow(), name="time")
        try:
            yield
        finally:
            flow.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await flow

    async def sleep(self, seconds: float, /) -> None:
        woken = asyncio.Event()
        timer = self.call_at(self.now + seconds, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()

    @contextlib.asynccontextmanager
    async def timeout(self, seconds: float | None, /) -> AsyncIterator[None]:
        async with asyncio.timeout(None) as limit:
            timer = None
            if seconds is not None:
                loop = asyncio.get_running_loop()
                timer = self.call_at(self.now + seconds, lambda: limit.reschedule(loop.time()))
            try:
                yield
            finally:
                if timer is not None:
                    timer.cancel()

    async def wait(
        self,
        waited_for: Iterable[F],
        /,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as asyncio.wait
        return_when: str = asyncio.ALL_COMPLETED,
    ) -> tuple[set[F], set[F]]:
        waited_for = set(waited_for)
        with contextlib.suppress(TimeoutError):
            async with self.timeout(timeout):
                await asyncio.wait(waited_for, return_when=return_when)
        done = {one for one in waited_for if one.done()}
        return done, waited_for - done

    def call_at(self, monotonic: float, callback: Callable[..., object], *args: Any) -> _Timer | asyncio.Handle:
        if monotonic <= self.now:
            return asyncio.get_running_loop().call_soon(callback, *args)
        timer = _Timer(lambda: callback(*args))
        heapq.heappush(self._timers, (monotonic, next(self._order), timer))
        return timer

    def call_later(self, delay_seconds: float, callback: Callable[..., object], *args: Any) -> None:
        self.call_at(self.now + delay_seconds, callback, *args)

    async def _flow(self) -> None:
        while True:
            end = self.now + FLOW_SECONDS
            while self.now < end:
                await self._step(end)
            await asyncio.sleep(POLL_SECONDS)

    async def _step(self, end: float) -> None:
        """Advance to the next timer, at most to `end`."""
        due = min(self._next_due(), end)
        await self._let_others_run(due - self.now)
        self._go_on_to(min(self._next_due(), due))  # an earlier timer may have been set meanwhile

    def _next_due(self) -> float:
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else float("inf")

    def _go_on_to(self, now: float) -> None:
        self.now = max(self.now, now)
        while self._next_due() <= self.now:
            heapq.heappop(self._timers)[2].call()

    @staticmethod
    async def _let_others_run(seconds: float) -> None:
        """Run iterations of the event loop in proportion to `seconds`, and give other threads a moment."""
        for _ in range(10 + round(min(seconds, 5.0) * TURNS_PER_SECOND)):
            await asyncio.sleep(0)
        if seconds >= 0.5:
            await asyncio.sleep(0.001)


async def next_millisecond() -> None:
    """Wait for the next millisecond, so that later messages have a later timestamp: brokers stamp milliseconds."""
    now_ms = int(time.time() * 1000)
    while int(time.time() * 1000) == now_ms:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)
