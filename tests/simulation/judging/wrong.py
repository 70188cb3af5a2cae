"""A fault of a history."""

from __future__ import annotations

from typing import NamedTuple


class Wrong(NamedTuple):
    """A fault: its kind (lost, twice, out of order, at once, stuck, commit, fell, ...), a text and message keys."""

    what: str
    text: str
    keys: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"{self.what}: {self.text}"
