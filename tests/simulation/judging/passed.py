"""What need not be handled, and what is to be handled again: by an operator's reset, or by another filter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.simulation.ledger import Ledger, Stored

ALL_TAGS: Final = "*"
HEARD_SECONDS: Final = 2.0
"""How long after a pull is told of a reset a commit may come that its owner sent before it heard: the network takes up
to a second for the answer, and for the commit."""
OBEYED_SECONDS: Final = 12.0
"""How long after a pushed reset a queue may be set: 5 s until its hand-over, which takes 5 s, and a moment more."""
FOUND_SECONDS: Final = 15.0
"""How long after a reset its queue may be set that is told to the held pull of a former owner: the owner finds it
stored at a commit, and believes it at one that comes 4 s later or more; 5 s are between two."""
LOOKED_SECONDS: Final = 25.0
"""For so long after it took a queue over an owner looks for resets that were told to others: another one ends that."""


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

    def __init__(
        self, ledger: Ledger, is_excused: Callable[[Reset], bool], is_troubled: Callable[[float], bool]
    ) -> None:
        self.filters = [Filter(0.0, ALL_TAGS)]
        self.tags: dict[Stored, tuple[float, str]] = {}
        """When each message was stored, and its tag."""
        self._ledger = ledger
        self._is_excused = is_excused
        self._is_troubled = is_troubled
        self._resets: dict[tuple[str, int], list[Reset]] = defaultdict(list)
        self._begun_anew: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)

    def reset(self, reset: Reset) -> None:
        """Note a reset."""
        self._resets[reset.broker, reset.queue].append(reset)

    def begin_anew(self, broker: str, queue: int, offset: int, at: float) -> None:
        """Note that the group begins anew at an offset of a queue, as a new one."""
        self._begun_anew[broker, queue].append((offset, at))

    def was_reset(self, broker: str, queue: int, by: float) -> bool:
        """Whether there was a reset of a queue by then."""
        return any(reset.at <= by for reset in self._resets.get((broker, queue), ()))

    def resets(self, place: Stored) -> list[Reset]:
        """The resets of a message's queue, in their order."""
        return self._resets.get(place[:2], [])

    def is_passed(self, place: Stored, by: float = float("inf")) -> bool:
        """Whether a message needs not to be handled, as far as it was known by then."""
        resets = [reset for reset in self.resets(place) if reset.at <= by]
        return bool(resets and resets[-1].skips(place)) or self._is_left_out(place, by)

    def was_passed(self, place: Stored, by: float) -> bool:
        """Whether the group has passed a message over by then, though it may have to come back to it."""
        return any(reset.at <= by and reset.skips(place) for reset in self.resets(place)) or self._is_left_out(
            place, by
        )

    def repeats(self, key: str, place: Stored) -> int:
        """How often resets may have a message handled once more.

        Each member that takes a queue over within 5 s obeys a pushed reset, which the owner before it may have obeyed.
        What comes after a told one may be handled before the owner finds it.
        """
        count = 0
        for reset in self.resets(place):
            calls = [call for call in self._ledger.calls.get(key, ()) if reset.offset <= place.offset]
            if reset.is_pushed:
                is_before = any(call.began < reset.at + OBEYED_SECONDS for call in calls)
                count += is_before * len({call.member for call in calls if reset.at < call.began})
            else:
                is_found_late = any(reset.at < call.began < reset.at + FOUND_SECONDS for call in calls)
                count += reset.repeats(place) or is_found_late
        return count

    def must_come_again(self, place: Stored, by: float) -> float:
        """Since when a message has to be finished again, because of a reset that has surely had its effect.

        The owner may commit once more before it hears of the reset. Who was cut off then has not heard of it, and may
        commit what it had finished as soon as it is back.
        """
        resets = [one for one in self.resets(place) if self._told_at(one) + HEARD_SECONDS <= by and one.repeats(place)]
        sure = (one.at for one in resets if not (one.is_pushed or self._may_be_lost(one) or self._is_troubled(one.at)))
        return max(sure, default=float("-inf"))

    def _told_at(self, reset: Reset) -> float:
        """When the owner's pull is told of a reset: a broker tells one that it holds as the next message comes."""
        next_at, _ = self.tags.get(Stored(reset.broker, reset.queue, reset.end), (reset.at, ""))
        return max(reset.at, next_at)

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
                # what is popped anew may come as a retry: if nobody handled it in time, and it was shown again
                calls = self._ledger.calls.get(key, ())
                begun = (call.began for call in calls if call.place == place or call.is_shown_again)
                if max(begun, default=-1.0) < resets[-1].at and not self._may_be_lost(resets[-1]):
                    found.append(resets[-1])
        return found

    def repeats_unawaited(self) -> bool:
        """Whether some queue's last reset may have had no effect: who rests may still be at what it repeats."""
        lasts = (resets[-1] for resets in self._resets.values() if resets)
        return any(last.offset < last.end and self._may_be_lost(last) for last in lasts)

    def _may_be_lost(self, reset: Reset) -> bool:
        """Whether a reset may have had no effect: by a trouble, or as the owner does not look any more."""
        others = (one for one in self._resets[reset.broker, reset.queue] if one is not reset)
        is_after_another = any(one.at <= reset.at < one.at + LOOKED_SECONDS for one in others)
        return self._is_excused(reset) or (is_after_another and not reset.is_pushed)

    def _need_not_come(self, place: Stored) -> bool:
        """Whether a message is passed over, also if a reset was to take that back and may have had no effect."""
        resets = list(self.resets(place))
        while resets and not resets[-1].skips(place) and self._may_be_lost(resets[-1]):
            resets.pop()
        return bool(resets and resets[-1].skips(place)) or self.is_passed(place)

    def _is_left_out(self, place: Stored, by: float) -> bool:
        firsts = [first for first, at in self._begun_anew.get(place[:2], ()) if at <= by]
        return bool(firsts and place.offset < firsts[-1]) or self._is_filtered(place, by)

    def _is_filtered(self, place: Stored, by: float) -> bool:
        """Whether a filter in force at any time since a message was stored leaves it out."""
        if len(self.filters) == 1 or place not in self.tags:
            return False
        stored_at, tag = self.tags[place]
        return any(not one.takes(tag) and one.at <= by and stored_at <= one.until for one in self.filters)
