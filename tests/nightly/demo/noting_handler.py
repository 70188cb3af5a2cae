"""The demo's handler, with a note of each order's end that owes nothing to the engine's counters."""

from __future__ import annotations

from rmqd import Batch
from rmqd.demo import demo_orders as handler

acknowledged: list[str] = []
given_up: list[str] = []


async def handle(batch: Batch) -> None:
    """Handle the batch as the demo does, and note what it came to."""
    await handler.handle(batch)
    for index, message in enumerate(batch):
        (given_up if index in batch.decisions() else acknowledged).append(message.keys or "")
