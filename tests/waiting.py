"""Polling for a condition that signals no event: `eventually` in an event loop, `wait_until` without one.

The timeouts are for an idle machine. While processes wait for a core or a disk, as /proc/pressure reports, a wait is up
to MAX_TIMES as long.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar, overload

Value = TypeVar("Value")

# Ample for a busy machine, and less than rmqd's periodic checks of 30 s, which would hide a lost notification.
WAIT_SECONDS = 25.0
POLL_SECONDS = 0.005
ASK_SECONDS = 0.05  # between two requests to another process, which has to work for its response
MAX_TIMES = 3
PRESSURES: Final = (Path("/proc/pressure/cpu"), Path("/proc/pressure/io"))


class Patience:
    """A deadline after some seconds, extended on a machine that is too busy."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = time.monotonic()
        self._stalled = stalled_seconds()

    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        passed = time.monotonic() - self._begun
        if passed <= self._seconds:
            return False
        return passed > self._seconds * MAX_TIMES or passed - (stalled_seconds() - self._stalled) > self._seconds


def stalled_seconds() -> float:
    """Return how long some process has waited for a core or a disk since boot; 0 if the kernel does not count it."""
    total = 0
    for path in PRESSURES:
        with contextlib.suppress(OSError):
            if found := re.search(r"^some .* total=(\d+)", path.read_text(), re.MULTILINE):
                total += int(found[1])
    return total / 1e6


@overload
async def eventually(
    question: Callable[[], Awaitable[Value | None]], what: str, seconds: float = WAIT_SECONDS
) -> Value: ...
@overload
async def eventually(question: Callable[[], Value | None], what: str, seconds: float = WAIT_SECONDS) -> Value: ...
async def eventually(question: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> object:
    """Poll until the answer is true, and return it. Raises AssertionError with the last answer after `seconds`."""
    answer, patience = None, Patience(seconds)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds * MAX_TIMES):
            while not patience.is_over():
                asked, pause_seconds = question(), POLL_SECONDS
                if inspect.isawaitable(asked):
                    asked, pause_seconds = await asked, ASK_SECONDS
                answer = asked
                if answer:
                    return answer
                await asyncio.sleep(pause_seconds)
    raise AssertionError(_in_vain(what, seconds, answer))


def wait_until(question: Callable[[], Value | None], what: str, seconds: float = WAIT_SECONDS) -> Value:
    """The same as `eventually`, for tests that drive processes and have no event loop."""
    patience = Patience(seconds)
    while not (answer := question()):
        if patience.is_over():
            raise AssertionError(_in_vain(what, seconds, answer))
        time.sleep(ASK_SECONDS)
    return answer


def _in_vain(what: str, seconds: float, answer: object) -> str:
    return f"not within {seconds:g} s: {what} (last: {answer!r})"
