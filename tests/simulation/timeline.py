"""A history as a person reads it, and its digest, by which two runs are compared."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from tests.simulation.loop import START_SECONDS, SimulatedLoop


class Entry(NamedTuple):
    """What happened, to whom, and to which message. `at` is in seconds since the beginning."""

    at: float
    who: str
    what: str
    key: str = ""


class Timeline:
    """What happened, in its order."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.entries: list[Entry] = []
        self._loop = loop
        self._digest = hashlib.blake2b(digest_size=8)

    def now(self) -> float:
        """Seconds since the beginning."""
        return self._loop.now - START_SECONDS

    def note(self, who: str, what: str, key: str = "") -> None:
        """Add what happened, to the message of this key if there is one."""
        entry = Entry(self.now(), who, what, key)
        self.entries.append(entry)
        self._digest.update(repr((*entry, self._loop.turns)).encode())

    def tell(self, who: str, what: str) -> None:
        """Add what a member logs, which the digest leaves out."""
        self.entries.append(Entry(self.now(), who, what))

    @property
    def digest(self) -> str:
        """The same for two runs if all that happened was the same, at the same times and turns of the loop."""
        return self._digest.hexdigest()

    def lines(self, keys: frozenset[str] | None = None) -> list[str]:
        """One line for each entry; of messages only those with these keys, or all where `keys` is None."""
        return [
            f"{at:10.3f}  {who:<10} {what}"
            for at, who, what, key in self.entries
            if not key or keys is None or key in keys
        ]
