"""Waits for what a test expects, and says what it waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str, seconds: float = 25.0) -> None:
    """Let the loop run until `condition` holds; fails with `what` after `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 conditions of all kinds, and none of them has an event
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"waited {seconds} s in vain: {what}") from None
