"""A history as a person reads it, and its digest, by which two runs are compared."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from tests.simulation.loop import START_SECONDS, SimulatedLoop


class Event(NamedTuple):
    """What happened, and to whom. `at` is in seconds since the beginning."""

    at: float
    who: str
    what: str


class Timeline:
    """Events in their order."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.events: list[Event] = []
        self._loop = loop
        self._digest = hashlib.blake2b(digest_size=8)

    def now(self) -> float:
        """Seconds since the beginning."""
        return self._loop.now - START_SECONDS

    def note(self, who: str, what: str) -> None:
        """Add an event."""
        event = Event(self.now(), who, what)
        self.events.append(event)
        self._digest.update(repr((*event, self._loop.turns)).encode())

    @property
    def digest(self) -> str:
        """The same for two runs if all that happened was the same, at the same times and turns of the loop."""
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        """One line for each event."""
        return [f"{at:10.3f}  {who:<10} {what}" for at, who, what in self.events]
