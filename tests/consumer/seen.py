"""A handler that remembers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rmqd.handler import Batch
from tests.waiting import eventually


class Seen:
    """A handler that keeps the bodies that it got."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, batch: Batch) -> None:
        self.bodies += [message.body for message in batch]

    async def has(self, *bodies: bytes) -> None:
        """Wait until just these were handled, in this order."""
        try:
            await eventually(lambda: self.bodies == list(bodies), f"{bodies} are handled")
        except AssertionError as error:
            error.add_note(f"it is {self.bodies}")
            raise


def keeping(bodies: list[bytes], *, is_async: bool) -> Callable[[Batch], Any]:
    """A handler that adds to `bodies` what it gets."""

    def handle(batch: Batch) -> None:
        bodies.extend(message.body for message in batch)

    async def handle_async(batch: Batch) -> None:
        handle(batch)

    return handle_async if is_async else handle
