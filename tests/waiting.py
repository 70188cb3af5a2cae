"""The one way to wait for what no event tells: `eventually` beside what runs in this loop, `wait_until` without one."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

Value = TypeVar("Value")

# Ample for a busy machine, and less than the half minute after which what was missed is looked at anyway.
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
                answer, pause_seconds = question(), LOOK_SECONDS
                if inspect.isawaitable(answer):
                    answer, pause_seconds = await answer, ASK_SECONDS
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
