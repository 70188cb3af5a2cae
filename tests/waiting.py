"""How tests wait for a condition that signals no event: `eventually` in an event loop, `wait_until` without one."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

Value = TypeVar("Value")

# Ample for a busy machine, and less than rmqd's periodic checks of 30 s, which would hide a lost notification.
WAIT_SECONDS = 25.0
LOOK_SECONDS = 0.005
ASK_SECONDS = 0.05  # between two questions to another process, which has to work for its answer


@overload
async def eventually(
    question: Callable[[], Awaitable[Value | None]], what: str, seconds: float = WAIT_SECONDS
) -> Value: ...
@overload
async def eventually(question: Callable[[], Value | None], what: str, seconds: float = WAIT_SECONDS) -> Value: ...
async def eventually(question: Callable[[], object], what: str, seconds: float = WAIT_SECONDS) -> object:
    """Ask until the answer is true, and return it; AssertionError with the last answer after `seconds`."""
    answer: object = None
    try:
        async with asyncio.timeout(seconds):
            while True:
                asked, pause_seconds = question(), LOOK_SECONDS
                if inspect.isawaitable(asked):
                    asked, pause_seconds = await asked, ASK_SECONDS
                answer = asked
                if answer:
                    return answer
                await asyncio.sleep(pause_seconds)
    except TimeoutError:
        raise AssertionError(_in_vain(what, seconds, answer)) from None


def wait_until(question: Callable[[], Value | None], what: str, seconds: float = WAIT_SECONDS) -> Value:
    """As `eventually`, for tests that drive processes and have no event loop."""
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise AssertionError(_in_vain(what, seconds, answer))
        time.sleep(ASK_SECONDS)
    return answer


def _in_vain(what: str, seconds: float, answer: object) -> str:
    return f"not within {seconds:g} s: {what} (last: {answer!r})"
