"""What need not be handled, and what is to be handled again: by an operator's reset, or by another filter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.simulation.ledger import Ledger, Stored

ALL_TAGS: Final = "*"
OBEYED_SECONDS: Final = 12.0
"""How long after a pushed reset a queue may be set: 5 s until its hand-over, which takes 5 s, and a moment more."""


class Reset(NamedTuple):
    """An operator has set the group's offset in one queue. `at` is in seconds since the beginning."""

    at: float
    broker: str
    queue: int
    offset: int
    end: int
    """Where the queue ended then."""
    is_pushed: bool = False
    """Told to all members at once, and not to the next pull alone."""

    def skips(self, place: Stored) -> bool:
        """Whether it passes a message over."""
        return place.offset < self.offset

    def repeats(self, place: Stored) -> bool:
        """Whether a message that was there already comes after it, maybe once more."""
        return self.offset <= place.offset < self.end


@dataclass(slots=True)
class Filter:
    """A subscription by tags, and when some member had it."""

    at: float
    expression: str
    until: float = float("inf")

    def takes(self, tag: str) -> bool:
        """Whether messages with a tag match."""
        return self.expression == ALL_TAGS or tag in self.expression.split(" || ")


class Passed:
    """Knows the resets and the filters of a history."""

    def __init__(self, ledger: Ledger, is_excused: Callable[[Reset], bool]) -> None:
        self.filters = [Filter(0.0, ALL_TAGS)]
        self.tags: dict[Stored, tuple[float, str]] = {}
        """When each message was stored, and its tag."""
        self._ledger = ledger
        self._is_excused = is_excused
        self._resets: dict[tuple[str, int], list[Reset]] = defaultdict(list)

    def reset(self, reset: Reset) -> None:
        """Note a reset."""
        self._resets[reset.broker, reset.queue].append(reset)

    def resets(self, place: Stored) -> list[Reset]:
        """The resets of a message's queue, in their order."""
        return self._resets.get(place[:2], [])

    def is_passed(self, place: Stored, by: float = float("inf")) -> bool:
        """Whether a message needs not to be handled, as far as it was known by then."""
        resets = [reset for reset in self.resets(place) if reset.at <= by]
        return bool(resets and resets[-1].skips(place)) or self._is_filtered(place, by)

    def was_passed(self, place: Stored, by: float) -> bool:
        """Whether the group has passed a message over by then, though it may have to come back to it."""
        return any(reset.at <= by and reset.skips(place) for reset in self.resets(place)) or self._is_filtered(
            place, by
        )

    def repeats(self, key: str, place: Stored) -> int:
        """How often resets may have a message handled once more.

        Each member that takes a queue over within 5 s obeys a pushed reset, which the owner before it may have obeyed.
        """
        count = 0
        for reset in self.resets(place):
            if reset.is_pushed:
                calls = [call for call in self._ledger.calls.get(key, ()) if reset.offset <= place.offset]
                is_before = any(call.began < reset.at + OBEYED_SECONDS for call in calls)
                count += is_before * len({call.member for call in calls if reset.at < call.began})
            else:
                count += reset.repeats(place)
        return count

    def is_settled(self, key: str, places: list[Stored]) -> bool:
        """Whether nobody waits for a message: it was done, or passed over, and came again after a reset."""
        is_done = self._ledger.is_done(key) or all(self._need_not_come(place) for place in places)
        return is_done and not self.unheeded(key, places)

    def unheeded(self, key: str, places: list[Stored]) -> list[Reset]:
        """The resets after which a message had to come again, and has not, without a cause."""
        found = []
        for place in places:
            resets = self.resets(place)
            if resets and resets[-1].repeats(place) and not self.is_passed(place):
                begun = (call.began for call in self._ledger.calls.get(key, ()) if call.place == place)
                if max(begun, default=-1.0) < resets[-1].at and not self._is_excused(resets[-1]):
                    found.append(resets[-1])
        return found

    def _need_not_come(self, place: Stored) -> bool:
        """Whether a message is passed over, also if a reset was to take that back and may have had no effect."""
        resets = list(self.resets(place))
        while resets and not resets[-1].skips(place) and self._is_excused(resets[-1]):
            resets.pop()
        return bool(resets and resets[-1].skips(place)) or self.is_passed(place)

    def _is_filtered(self, place: Stored, by: float) -> bool:
        """Whether a filter in force at any time since a message was stored leaves it out."""
        if len(self.filters) == 1 or place not in self.tags:
            return False
        stored_at, tag = self.tags[place]
        return any(not one.takes(tag) and one.at <= by and stored_at <= one.until for one in self.filters)
