"""Messages that were finished twice without a cause."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Call

if TYPE_CHECKING:
    from tests.simulation.history import History


def twice(history: History) -> tuple[list[Wrong], Counter[str]]:
    """What was finished twice and no trouble explains, beyond what the members count; and what was, by cause."""
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
    causes, unexplained, stored = Counter[str](), [], history.stored()
    for key, calls in history.ledger.calls.items():
        good = [call for call in calls if call.is_good]
        places = stored.get(key, [])
        if len(good) <= len(places):
            continue
        if len(good) <= len(places) + sum(history.passed.repeats(key, place) for place in places):
            causes["reset"] += 1
            continue
        trouble = next((one for one in history.causes if one.explains_twice(calls)), None)
        if trouble is None:
            unexplained.append(key)
        else:
            causes[trouble.what] += 1
    return causes, unexplained


def _told(calls: list[Call]) -> str:
    return ", ".join(f"{call.key} by {call.member} at {call.began:.3f} s" for call in calls)
