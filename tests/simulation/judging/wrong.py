"""One thing that is wrong with a history."""

from __future__ import annotations

from typing import NamedTuple


class Wrong(NamedTuple):
    """What is wrong (lost, twice, out of order, at once, stuck, commit, fell), in words, and the messages' keys."""

    what: str
    text: str
    keys: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.what}: {self.text}"
