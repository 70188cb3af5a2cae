"""A history as readable lines, and as a digest to compare two runs."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from tests.simulation.loop import START_SECONDS, SimulatedLoop


class Entry(NamedTuple):
    """An event, its actor and its message. `at` is in seconds since the beginning."""

    at: float
    who: str
    what: str
    key: str = ""


class Timeline:
    """The events in their order."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.entries: list[Entry] = []
        self._loop = loop
        self._digest = hashlib.blake2b(digest_size=8)

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return self._loop.now - START_SECONDS

    def note(self, who: str, what: str, key: str = "") -> None:
        """Add an event, of the message with this key if there is one."""
        entry = Entry(self.now(), who, what, key)
        self.entries.append(entry)
        self._digest.update(repr((*entry, self._loop.turns)).encode())

    def tell(self, who: str, what: str) -> None:
        """Add a log event of a member. The digest omits it."""
        self.entries.append(Entry(self.now(), who, what))

    @property
    def digest(self) -> str:
        """The digest of all events with their times and loop iterations, equal for equal runs."""
        return self._digest.hexdigest()

    def lines(self, keys: frozenset[str] | None = None) -> list[str]:
        """Return a line for each entry; message entries only for these keys, or all if `keys` is None."""
        return [
            f"{at:10.3f}  {who:<10} {what}"
            for at, who, what, key in self.entries
            if not key or keys is None or key in keys
        ]
