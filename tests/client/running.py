"""Runs something that goes on until it is cancelled, for the length of a test's block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine


@contextlib.asynccontextmanager
async def running(work: Coroutine[object, object, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run `work` beside the block and cancel it at the end; what it raised fails the test."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
