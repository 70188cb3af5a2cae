"""Messages that were finished twice without a cause."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Call, Stored

if TYPE_CHECKING:
    from tests.simulation.history import History


def twice(history: History) -> tuple[list[Wrong], Counter[str]]:
    """What was done or given up twice, and no trouble or counter explains it; and what was, by cause."""
    causes, unexplained = _by_cause(history)
    counted, timeouts = Counter[str](), 0
    for member in history.former:
        snapshot = member.consumer.snapshot()
        timeouts += snapshot.handover_timeouts
        for topic in snapshot.topics:
            counted.update(topic.duplicates)
    causes.update(counted if unexplained else {})
    # where nothing broke, a hand-over in time has no duplicates, whether or not the members count them
    is_excused = history.causes or timeouts
    if len(unexplained) <= (counted.total() if is_excused else 0):
        return [], causes
    about = f"; the members count {dict(counted)}"
    return [Wrong("twice", _told(history.ledger.calls[key]) + about, frozenset((key,))) for key in unexplained], causes


def _by_cause(history: History) -> tuple[Counter[str], list[str]]:
    causes, unexplained, stored, settled = Counter[str](), [], history.stored(), _settled(history)
    for key, calls in history.ledger.calls.items():
        good = sorted((call for call in calls if call.is_good), key=lambda call: call.until or call.began)
        places = stored.get(key, [])
        count = len(good) + len(history.ledger.dead.get(key, ()))
        if count <= len(places):
            continue
        allowed = len(places) + sum(history.passed.repeats(key, place) for place in places)
        if count <= allowed:
            causes["reset"] += 1
            continue
        if key in history.ledger.dead:
            cause = _cause_of_dead(history, calls)
            if cause is None:
                unexplained.append(key)
            else:
                causes[cause] += 1
            continue
        found = [_cause(history, calls, pair, settled) for pair in itertools.pairwise(good)]
        if found.count(None) >= max(1, allowed):
            unexplained.append(key)
        else:
            causes[next(cause for cause in found if cause is not None)] += 1
    return causes, unexplained


def _cause(history: History, calls: list[Call], pair: tuple[Call, Call], settled: dict[Stored, float]) -> str | None:
    """What explains that a message was done twice in turn."""
    done, again = pair
    # copies of a message that was sent back come of the delivery that failed
    since = max(call.began for call in calls if call.began <= done.began and not call.is_retry) if again.is_retry else 0
    at = since or max(settled.get(done.place, 0.0), done.until or done.began)
    return next((one.what for one in history.causes if one.explains_twice(done, again, at)), None)


def _settled(history: History) -> dict[Stored, float]:
    """When each message and all below it in its queue were finished for the first time."""
    first: dict[Stored, float] = {}
    for calls in history.ledger.calls.values():
        for call in calls:
            if call.until is not None and not call.is_retry:
                first[call.place] = min(first.get(call.place, call.until), call.until)
    settled, queue, latest = dict[Stored, float](), None, 0.0
    for place in sorted(first):
        if place[:2] != queue:
            queue, latest = place[:2], 0.0
        settled[place] = latest = max(latest, first[place])
    return settled


def _cause_of_dead(history: History, calls: list[Call]) -> str | None:
    """Why a message was given up, and given up again or done."""
    if not history.plan.auto_commit:
        return "not committed"  # what is in front of a dead letter comes again, and so does what became one
    return next((one.what for one in history.causes if one.explains_attempts(calls)), None)


def _told(calls: list[Call]) -> str:
    return ", ".join(f"{call.key} by {call.member} at {call.began:.3f} s" for call in calls)
