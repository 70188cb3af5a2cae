"""A handler that never returns, for stops that cannot be orderly."""

from __future__ import annotations

import asyncio

from rmqd import Batch


async def handle(batch: Batch) -> None:
    """Wait forever."""
    await asyncio.Event().wait()
