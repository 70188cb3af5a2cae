"""Order in orderly queues, and in lanes of `order_by`: messages out of order, and two members at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Call, Stored
from tests.simulation.names import lane_of

if TYPE_CHECKING:
    from tests.simulation.history import History


def disorder(history: History) -> Iterator[Wrong]:
    """Report batches that began before the message below (with `order_by`: of the same key) was finished first."""
    done: dict[Stored, float] = {}
    begun: dict[Stored, set[float]] = {}
    keys: dict[Stored, str] = {}
    for calls in history.ledger.calls.values():
        for call in calls:
            keys[call.place] = call.key
            begun.setdefault(call.place, set()).add(call.began)
            for at in _passed(history, call):
                done[call.place] = min(done.get(call.place, at), at)
    before = _before_in_lanes(history) if history.plan.has_lanes else None
    for place, times in sorted(begun.items()):
        below, at = place._replace(offset=place.offset - 1), min(times)
        if before is not None:
            if place not in before:
                continue
            below = before[place]
        # The messages of one batch begin at the same moment.
        if not place.offset or at in begun.get(below, ()) or history.passed.was_passed(below, at):
            continue
        if done.get(below, at + 1) > at:
            about = f"{place} begun at {at:.3f} s, the one below done at {done.get(below)}"
            yield Wrong("out of order", about, frozenset((keys[place], keys.get(below, ""))))


def _before_in_lanes(history: History) -> dict[Stored, Stored]:
    """Return the previous message of each message in its lane; first messages and those without a lane have none."""
    lanes: dict[tuple[str, int, str], list[Stored]] = {}
    for key, places in history.stored().items():
        for place in places if (lane := lane_of(key)) else ():
            lanes.setdefault((place.broker, place.queue, lane), []).append(place)
    return {place: before for places in lanes.values() for before, place in itertools.pairwise(sorted(places))}


def _passed(history: History, call: Call) -> list[float]:
    """Return when the queue could continue after a message because of this delivery."""
    if call.is_passed and call.until is not None:
        return [call.until]
    return history.ledger.dead.get(call.key, [])


def overlaps(history: History) -> Iterator[Wrong]:
    """Report two members that had messages of one queue at the same time."""
    queues: dict[tuple[str, int], list[Call]] = {}
    for calls in history.ledger.calls.values():
        for call in calls:
            if not call.is_retry:
                queues.setdefault(call.place[:2], []).append(call)
    for queue, calls in sorted(queues.items()):
        calls.sort(key=lambda call: call.began)
        for pair in itertools.pairwise(calls):
            before, call = pair
            end = before.until if before.until is not None else history.causes.end_of(before.member)
            if call.member == before.member or end <= call.began or history.java.explains_overlap(before, call):
                continue
            of_java = any(history.java.is_member(one.member) for one in pair)
            if not any(trouble.explains_overlap(list(pair), of_java=of_java) for trouble in history.causes):
                about = f"{queue} by {before.member} and {call.member} at {call.began:.3f} s"
                yield Wrong("at once", about, frozenset((before.key, call.key)))
