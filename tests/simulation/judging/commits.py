"""Offsets that were committed over messages that nobody had finished."""

from __future__ import annotations

from collections import defaultdict

from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Ledger, Stored


class Commits:
    """Looks at each offset that a broker stores for the group."""

    def __init__(self, ledger: Ledger) -> None:
        self.wrong: list[Wrong] = []
        self._ledger = ledger
        self._offsets: dict[tuple[str, int], int] = {}
        self._finished: dict[tuple[str, int], int] = defaultdict(int)

    def stored(self, broker: str, queue: int, offset: int) -> bool:
        """A broker has an offset: each message below it must have been finished, well or not. Whether it is another."""
        if self._offsets.get((broker, queue)) == offset:
            return False
        self._offsets[broker, queue] = offset
        below = self._finished[broker, queue]
        while below < offset and Stored(broker, queue, below) in self._ledger.finished:
            below += 1
        self._finished[broker, queue] = below
        if below < offset:
            place = Stored(broker, queue, below)
            about = f"{broker} queue {queue} was committed up to {offset}, and nobody has finished {below}"
            self.wrong.append(Wrong("commit", about, frozenset(self._ledger.keys_at(place))))
            self._finished[broker, queue] = offset  # told once
        return True

    def skipped(self, broker: str, queue: int, offset: int) -> None:
        """An operator has set the group's offset: what is below it need not be finished."""
        self._finished[broker, queue] = max(self._finished[broker, queue], offset)
