"""Offsets committed past unfinished messages, or lowered without a cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tests.simulation.judging.passed import Passed
from tests.simulation.judging.trouble import AFTER_RESET_SECONDS
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Ledger, Stored


class Commits:
    """Checks each offset that a broker stores for the group.

    Messages that a reset repeats must be finished again before their offsets are committed again.
    """

    def __init__(
        self, ledger: Ledger, passed: Passed, explains_lower: Callable[[str, int, float, float], bool]
    ) -> None:
        self.wrong: list[Wrong] = []
        self._ledger = ledger
        self._passed = passed
        self._explains_lower = explains_lower
        self._offsets: dict[tuple[str, int], int] = {}
        self._since: dict[tuple[str, int], float] = {}
        self._finished: dict[tuple[str, int], int] = defaultdict(int)

    def stored(self, broker: str, queue: int, offset: int, at: float) -> bool:
        """Check an offset that a broker stores at a time. Return whether it differs from the previous one.

        Each message below the offset must have been finished, with success or failure, or skipped. The offset may be
        lower than before only because of an operator's reset or a trouble.
        """
        if self._offsets.get((broker, queue)) == offset:
            return False
        if offset < self._offsets.get((broker, queue), 0) and not self._may_fall(broker, queue, at):
            about = f"{broker} queue {queue} was committed up to {self._offsets[broker, queue]}, and then to {offset}"
            self.wrong.append(Wrong("lowered", f"{about} at {at:.3f} s"))
        if offset < self._offsets.get((broker, queue), 0):
            self._finished[broker, queue] = min(self._finished[broker, queue], offset)
        self._offsets[broker, queue] = offset
        self._since[broker, queue] = at
        below = self._finished[broker, queue]
        while below < offset and self._may_be_below(Stored(broker, queue, below), at):
            below += 1
        self._finished[broker, queue] = below
        if below < offset:
            place = Stored(broker, queue, below)
            about = f"{broker} queue {queue} was committed up to {offset}, but {below} is not finished"
            self.wrong.append(Wrong("commit", about, frozenset(self._ledger.keys_at(place))))
            self._finished[broker, queue] = offset  # report it once
        return True

    def _may_fall(self, broker: str, queue: int, at: float) -> bool:
        resets, since = self._passed.resets(Stored(broker, queue, 0)), self._since.get((broker, queue), 0.0)
        if any(at <= reset.at + AFTER_RESET_SECONDS for reset in resets):
            return True
        return self._explains_lower(broker, queue, since, at)

    def _may_be_below(self, place: Stored, at: float) -> bool:
        if self._passed.was_passed(place, at):
            return True
        finished = self._ledger.finished.get(place)
        return finished is not None and finished >= self._passed.must_come_again(place, at)
