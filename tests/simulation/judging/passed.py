"""Messages that may be skipped, or must be handled again, because of an operator's reset or another filter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.simulation.ledger import Ledger, Stored

ALL_TAGS: Final = "*"
HEARD_SECONDS: Final = 2.0
"""How long after a pull response with a reset the owner's earlier commit may arrive: the network takes up to a second
for the response, and for the commit."""
OBEYED_SECONDS: Final = 12.0
"""How long after a pushed reset its effect may take: 5 s until the queue's hand-over, which takes 5 s, plus a
margin."""
FOUND_SECONDS: Final = 15.0
"""How long the effect of a reset may take that only the held pull of a previous owner reports. The owner finds the
offset at a commit, and trusts it at another commit at least 4 s later; commits are 5 s apart."""
LOOKED_SECONDS: Final = 25.0
"""How long after acquiring a queue an owner looks for resets that were reported to others; another reset ends that."""


class Reset(NamedTuple):
    """A reset of the group's offset in one queue. `at` is in seconds since the beginning."""

    at: float
    broker: str
    queue: int
    offset: int
    end: int
    """The end of the queue at that time."""
    is_pushed: bool = False
    """Whether the broker pushes it to all members. Otherwise it reports the reset to the next pull only."""

    def skips(self, place: Stored) -> bool:
        """Whether the reset skips a message."""
        return place.offset < self.offset

    def repeats(self, place: Stored) -> bool:
        """Whether the reset repeats a message that was stored before it."""
        return self.offset <= place.offset < self.end


@dataclass(slots=True)
class Filter:
    """A subscription by tags, and the time when any member had it."""

    at: float
    expression: str
    until: float = float("inf")

    def takes(self, tag: str) -> bool:
        """Whether the filter accepts messages with a tag."""
        return self.expression == ALL_TAGS or tag in self.expression.split(" || ")


class Passed:
    """The resets and filters of a history."""

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
        self._reported: dict[Reset, float] = {}

    def reset(self, reset: Reset) -> None:
        """Record a reset."""
        self._resets[reset.broker, reset.queue].append(reset)

    def report(self, broker: str, queue: int, at: float) -> None:
        """Record when a pull response reported the queue's last reset. It is late if flow control paused the pulls."""
        for reset in self._resets[broker, queue][-1:]:
            self._reported[reset] = at

    def begin_anew(self, broker: str, queue: int, offset: int, at: float) -> None:
        """Record that the group starts at an offset of a queue, like a new group."""
        self._begun_anew[broker, queue].append((offset, at))

    def was_reset(self, broker: str, queue: int, by: float) -> bool:
        """Whether a queue was reset by a time."""
        return any(reset.at <= by for reset in self._resets.get((broker, queue), ()))

    def resets(self, place: Stored) -> list[Reset]:
        """Return the resets of a message's queue, in their order."""
        return self._resets.get(place[:2], [])

    def is_passed(self, place: Stored, by: float = float("inf")) -> bool:
        """Whether a message need not be handled, by the resets and filters known at a time."""
        resets = [reset for reset in self.resets(place) if reset.at <= by]
        return bool(resets and resets[-1].skips(place)) or self._is_left_out(place, by)

    def was_passed(self, place: Stored, by: float) -> bool:
        """Whether the group has skipped a message by a time, even if it may have to return to it."""
        return any(reset.at <= by and reset.skips(place) for reset in self.resets(place)) or self._is_left_out(
            place, by
        )

    def repeats(self, key: str, place: Stored) -> int:
        """Return how often resets may repeat a message.

        Each member that acquires a queue within 5 s obeys a pushed reset, which the previous owner may have obeyed too.
        Messages after a reset of the other kind may be handled before the owner finds the reset.
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
        """Return since when a message must be finished again, because of a reset that certainly took effect.

        The owner may commit once more before it learns of the reset. An owner that was cut off may do so as soon as it
        reconnects.
        """
        resets = [one for one in self.resets(place) if self._told_at(one) + HEARD_SECONDS <= by and one.repeats(place)]
        sure = (one.at for one in resets if not (one.is_pushed or self._may_be_lost(one) or self._is_troubled(one.at)))
        return max(sure, default=float("-inf"))

    def _told_at(self, reset: Reset) -> float:
        """Return when the owner's pull reports a reset: a held pull waits for the next message."""
        next_at, _ = self.tags.get(Stored(reset.broker, reset.queue, reset.end), (reset.at, ""))
        return max(reset.at, next_at, self._reported.get(reset, 0.0))

    def is_settled(self, key: str, places: list[Stored]) -> bool:
        """Whether a message is finished: it was handled or skipped, and was handled again after a reset."""
        is_done = self._ledger.is_done(key) or all(self._need_not_come(place) for place in places)
        return is_done and not self.unheeded(key, places)

    def unheeded(self, key: str, places: list[Stored]) -> list[Reset]:
        """Return the resets after which a message should have been redelivered, and was not, without a cause."""
        found = []
        for place in places:
            resets = self.resets(place)
            if resets and resets[-1].repeats(place) and not self.is_passed(place):
                # A message that was popped again may arrive as a retry, if its invisible time ended before it was
                # handled.
                calls = self._ledger.calls.get(key, ())
                begun = (call.began for call in calls if call.place == place or call.is_shown_again)
                if max(begun, default=-1.0) < resets[-1].at and not self._may_be_lost(resets[-1]):
                    found.append(resets[-1])
        return found

    def repeats_unawaited(self) -> bool:
        """Whether some queue's last reset may have had no effect, so that an idle group may still repeat messages."""
        lasts = (resets[-1] for resets in self._resets.values() if resets)
        return any(last.offset < last.end and self._may_be_lost(last) for last in lasts)

    def _may_be_lost(self, reset: Reset) -> bool:
        """Whether a reset may have had no effect, by a trouble, or because the owner no longer looks for resets."""
        others = (one for one in self._resets[reset.broker, reset.queue] if one is not reset)
        is_after_another = any(one.at <= reset.at < one.at + LOOKED_SECONDS for one in others)
        return self._is_excused(reset) or (is_after_another and not reset.is_pushed)

    def _need_not_come(self, place: Stored) -> bool:
        """Whether a message is skipped, even if a later reset without effect should have undone that."""
        resets = list(self.resets(place))
        while resets and not resets[-1].skips(place) and self._may_be_lost(resets[-1]):
            resets.pop()
        return bool(resets and resets[-1].skips(place)) or self.is_passed(place)

    def _is_left_out(self, place: Stored, by: float) -> bool:
        firsts = [first for first, at in self._begun_anew.get(place[:2], ()) if at <= by]
        return bool(firsts and place.offset < firsts[-1]) or self._is_filtered(place, by)

    def _is_filtered(self, place: Stored, by: float) -> bool:
        """Whether any filter in force since a message was stored rejects it."""
        if len(self.filters) == 1 or place not in self.tags:
            return False
        stored_at, tag = self.tags[place]
        return any(not one.takes(tag) and one.at <= by and stored_at <= one.until for one in self.filters)
