"""Offsets that were committed over messages that nobody had finished."""

from __future__ import annotations

from collections import defaultdict

from tests.simulation.judging.passed import Passed
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Ledger, Stored


class Commits:
    """Looks at each offset that a broker stores for the group."""

    def __init__(self, ledger: Ledger, passed: Passed) -> None:
        self.wrong: list[Wrong] = []
        self._ledger = ledger
        self._passed = passed
        self._offsets: dict[tuple[str, int], int] = {}
        self._finished: dict[tuple[str, int], int] = defaultdict(int)

    def stored(self, broker: str, queue: int, offset: int, at: float) -> bool:
        """A broker has an offset from `at` on. Whether it is another.

        Each message below it must have been finished, well or not, or passed over.
        """
        if self._offsets.get((broker, queue)) == offset:
            return False
        self._offsets[broker, queue] = offset
        below = self._finished[broker, queue]
        while below < offset and self._may_be_below(Stored(broker, queue, below), at):
            below += 1
        self._finished[broker, queue] = below
        if below < offset:
            place = Stored(broker, queue, below)
            about = f"{broker} queue {queue} was committed up to {offset}, and nobody has finished {below}"
            self.wrong.append(Wrong("commit", about, frozenset(self._ledger.keys_at(place))))
            self._finished[broker, queue] = offset  # told once
        return True

    def _may_be_below(self, place: Stored, at: float) -> bool:
        return place in self._ledger.finished or self._passed.was_passed(place, at)
