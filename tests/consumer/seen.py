"""A handler that remembers."""

from __future__ import annotations

from rmqd.handler import Batch
from tests.client.peer import eventually


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
