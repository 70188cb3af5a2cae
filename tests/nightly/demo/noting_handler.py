"""The demo's handler. It also records the decision for each order, independently of the engine's counters."""

from __future__ import annotations

from rmqd import Batch
from rmqd.demo import demo_orders as handler

acknowledged: list[str] = []
given_up: list[str] = []


async def handle(batch: Batch) -> None:
    """Handle the batch like the demo, and record the decisions."""
    await handler.handle(batch)
    for index, message in enumerate(batch):
        (given_up if index in batch.decisions() else acknowledged).append(message.keys or "")
