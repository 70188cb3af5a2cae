"""What is wrong with a history: messages lost, out of order, handled twice without a cause; a group that is stuck."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.ledger import Call, Stored

if TYPE_CHECKING:
    from tests.simulation.history import History

REST_SECONDS: Final = 200.0
"""How long a group may take to handle all that is left once nothing breaks any more."""
BEFORE_SECONDS: Final = 10.0
"""A trouble undoes what was committed for so long before it: the brokers' flush, and the members' commit interval."""
AFTER_SECONDS: Final = 70.0
"""For so long after a trouble its effects may show: locks end after 60 s."""

GROUP_WIDE: Final = frozenset(("crashed", "paused", "apart"))
"""Troubles that reach every queue: members learn of each other by any broker, and one that was paused commits late."""


class Trouble(NamedTuple):
    """What broke, from when to when (seconds since the beginning), and for whom."""

    at: float
    until: float
    what: str
    who: tuple[str, ...]

    def explains(self, calls: list[Call]) -> bool:
        """Whether these deliveries of one message may be more than one because of it."""
        times = [call.until for call in calls if call.until is not None] + [call.began for call in calls]
        if self.at > max(times) or self.until + AFTER_SECONDS < min(times) - BEFORE_SECONDS:
            return False
        if self.what in GROUP_WIDE:
            return True
        members, brokers = {call.member for call in calls}, {call.place.broker for call in calls}
        return any(name.partition("/")[0] in members | brokers for name in self.who)


def judge(history: History, stored: dict[str, list[Stored]], rest_seconds: float) -> tuple[list[str], Counter[str]]:
    """What is wrong, in words; and what was done twice, by cause."""
    wrong: list[str] = []
    ledger = history.ledger
    lost = [key for key in sorted(history.sent) if key not in stored]
    wrong += [f"lost by a broker, which is a fault of the simulation: {key}" for key in lost]
    wrong += [f"lost: {key} at {places}" for key, places in stored.items() if not ledger.is_done(key)]
    if rest_seconds > REST_SECONDS:
        wrong.append(f"stuck: it took {rest_seconds:.0f} s to handle what was left")
    twice, unexplained = _twice(history, stored)
    counted, timeouts = Counter[str](), 0
    for member in (*history.gone, *history.killed):
        snapshot = member.consumer.snapshot()
        timeouts += snapshot.handover_timeouts
        for topic in snapshot.topics:
            counted.update(topic.duplicates)
    # where nothing broke, a hand-over in time has no duplicates, whether or not the members count them
    is_excused = history.causes or timeouts
    if len(unexplained) > (counted.total() if is_excused else 0):
        wrong += [f"twice: {_told(ledger.calls[key])}" for key in unexplained]
        wrong.append(f"of these {len(unexplained)} the members count {dict(counted)}")
    twice.update(counted if unexplained else {})
    if history.is_orderly:
        wrong += _disorder(history) + _overlaps(history)
    return wrong, twice


def _twice(history: History, stored: dict[str, list[Stored]]) -> tuple[Counter[str], list[str]]:
    causes, unexplained = Counter[str](), []
    for key, calls in history.ledger.calls.items():
        good = [call for call in calls if call.is_good]
        if len(good) <= len(stored.get(key, ())):
            continue
        trouble = next((one for one in history.causes if one.explains(calls)), None)
        if trouble is None:
            unexplained.append(key)
        else:
            causes[trouble.what] += 1
    return causes, unexplained


def _disorder(history: History) -> list[str]:
    """Where a batch was begun before the message below it was done for the first time."""
    wrong: list[str] = []
    done: dict[Stored, float] = {}
    begun: dict[Stored, set[float]] = {}
    for calls in history.ledger.calls.values():
        for call in calls:
            begun.setdefault(call.place, set()).add(call.began)
            if call.is_good and call.until is not None:
                done[call.place] = min(done.get(call.place, call.until), call.until)
    for place, times in sorted(begun.items()):
        below, at = place._replace(offset=place.offset - 1), min(times)
        # those of one batch begin at the same moment
        if place.offset and done.get(below, at + 1) > at and at not in begun.get(below, ()):
            wrong.append(f"out of order: {place} begun at {at:.3f} s, the one below done at {done.get(below)}")
    return wrong


def _told(calls: list[Call]) -> str:
    return ", ".join(f"{call.key} by {call.member} at {call.began:.3f} s" for call in calls)


def _overlaps(history: History) -> list[str]:
    """Where two members had messages of one queue at the same time, though nothing had broken."""
    queues: dict[tuple[str, int], list[Call]] = {}
    for calls in history.ledger.calls.values():
        for call in calls:
            if not call.is_retry:
                queues.setdefault(call.place[:2], []).append(call)
    wrong = []
    for queue, calls in sorted(queues.items()):
        calls.sort(key=lambda call: call.began)
        for before, call in itertools.pairwise(calls):
            is_over = before.until is not None and before.until <= call.began
            if call.member != before.member and not is_over and not _broken(history, [before, call]):
                wrong.append(f"at once: {queue} by {before.member} and {call.member} at {call.began:.3f} s")
    return wrong


def _broken(history: History, calls: list[Call]) -> bool:
    return any(trouble.explains(calls) for trouble in history.causes)
