"""A handler that never returns, for ends that cannot be orderly."""

from __future__ import annotations

import asyncio

from rmqd import Batch


async def handle(batch: Batch) -> None:
    """Wait for what does not come."""
    await asyncio.Event().wait()
