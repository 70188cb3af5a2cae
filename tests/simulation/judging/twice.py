"""Messages that were finished twice without a cause."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.java import CAUSE
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Call, Stored, Verdict

if TYPE_CHECKING:
    from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
    from tests.simulation.history import History

BEHIND: Final = "behind a failed message"
"""If failed messages stay in their queue, messages finished above one are not committed before it."""
Settled = dict[tuple[bool, Stored], float]
"""When each message, of the retry topic or not, and all below it in its queue were finished first."""


def twice(history: History) -> tuple[list[Wrong], Counter[str]]:
    """Return the duplicates without a trouble or counter that explains them, and the number of duplicates by cause."""
    causes, unexplained = _by_cause(history)
    counted, timeouts = counted_twice(history), sum(one.handover_timeouts for one in _snapshots(history))
    causes.update(counted if unexplained else {})
    if len(unexplained) <= counted.total():
        # Without a failure, a hand-over in time has no duplicates, whether or not the members count them.
        unexplained = [] if timeouts else [key for key in unexplained if not _is_met(history, key)]
    about = f"; the members count {dict(counted)}"
    return [Wrong("twice", _told(history.ledger.calls[key]) + about, frozenset((key,))) for key in unexplained], causes


def _is_met(history: History, key: str) -> bool:
    """Whether any trouble overlaps the deliveries of a message."""
    return any(trouble.meets(history.ledger.calls[key]) for trouble in history.causes)


def counted_twice(history: History) -> Counter[str]:
    """Return the duplicates that the members count, by cause."""
    counted = Counter[str]()
    for snapshot in _snapshots(history):
        for topic in snapshot.topics:
            counted.update(topic.duplicates)
    return counted


def _snapshots(history: History) -> list[GroupSnapshot]:
    """Return the snapshots of rmqd's members."""
    return [snapshot for member in history.former if (snapshot := member.snapshot()) is not None]


def _by_cause(history: History) -> tuple[Counter[str], list[str]]:
    causes, unexplained, stored, settled = Counter[str](), [], history.stored(), settled_times(history)
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
            cause = _cause_of_dead(history, calls, settled)
            if cause is None:
                unexplained.append(key)
            else:
                causes[cause] += 1
            continue
        found = [_cause(history, calls, pair, settled) for pair in _pairs(good)]
        if found.count(None) >= max(1, allowed - len(good) + 1 + len(found)):
            unexplained.append(key)
        else:
            causes[next(cause for cause in found if cause is not None)] += 1
    return causes, unexplained


def _pairs(good: list[Call]) -> Iterator[tuple[Call, Call]]:
    """Return consecutive successful calls: of each stored copy separately, unless a copy was retried."""
    if any(call.is_retry for call in good):
        yield from itertools.pairwise(good)
        return
    for place in {call.place: None for call in good}:
        yield from itertools.pairwise(call for call in good if call.place == place)


def _cause(history: History, calls: list[Call], pair: tuple[Call, Call], settled: Settled) -> str | None:
    """Return why a message was handled twice in turn; None if there is no cause."""
    pairs = [pair]
    if pair[0].is_retry or pair[1].is_retry:
        # Copies may stem from the message itself, or from a failed retry that was delivered or sent back twice.
        origins = sorted((call for call in calls if not call.is_retry), key=lambda call: call.began)
        pairs += [*itertools.pairwise(origins), *((origin, pair[1]) for origin in origins)]
        pairs += _retries_delivered_twice(calls, pair[1])
    for done, again in pairs:
        at = max(settled.get((done.is_retry, done.place), 0.0), done.until or done.began)
        for trouble in history.causes:
            # A killed member has not committed the offsets that it could not send to any broker.
            by = max(at, history.causes.reached_at(done, at)) if trouble.what == "killed" else at
            if trouble.explains_twice(done, again, by):
                return trouble.what
        if history.plan.repeats_in_place and _is_behind_a_failed_one(history, done, again):
            return BEHIND
    same = [call for call in calls if pair[0].place != pair[1].place or call.place == pair[0].place]
    return CAUSE if history.java.explains(same, settled) else None


def _retries_delivered_twice(calls: list[Call], again: Call) -> Iterator[tuple[Call, Call]]:
    """Return consecutive deliveries of one retry up to `again`, whose former one failed and so made another copy."""
    retries = [call for call in calls if call.is_retry and call.began <= again.began]
    for place in {call.place: None for call in retries}:
        for former, latter in itertools.pairwise(call for call in retries if call.place == place):
            if former.verdict is Verdict.FAILED:
                yield former, latter


def _is_behind_a_failed_one(history: History, done: Call, again: Call) -> bool:
    """Whether a message below `done` had failed in its queue, and was not redelivered, before `again`."""
    for calls in history.ledger.calls.values():
        below = [
            call
            for call in calls
            if (call.is_retry, *call.place[:2]) == (done.is_retry, *done.place[:2])
            and call.place.offset < done.place.offset
            and call.member == done.member
            and call.began < again.began
        ]
        if below and max(below, key=lambda call: call.began).verdict is Verdict.FAILED:
            return True
    return False


def settled_times(history: History) -> Settled:
    """Return when each message and all below it in its queue were finished first."""
    first: Settled = {}
    for calls in history.ledger.calls.values():
        for call in calls:
            if call.until is not None:
                at = (call.is_retry, call.place)
                first[at] = min(first.get(at, call.until), call.until)
    settled: Settled = {}
    queue, latest = None, 0.0
    for is_retry, place in sorted(first):
        if (is_retry, *place[:2]) != queue:
            queue, latest = (is_retry, *place[:2]), 0.0
        settled[is_retry, place] = latest = max(latest, first[is_retry, place])
    return settled


def _cause_of_dead(history: History, calls: list[Call], settled: Settled) -> str | None:
    """Return why a dead-lettered message was dead-lettered again or handled; None if there is no cause."""
    in_turn = itertools.pairwise(sorted(calls, key=lambda call: call.began))
    if history.plan.repeats_in_place and any(_is_behind_a_failed_one(history, *pair) for pair in in_turn):
        return BEHIND
    if not history.plan.auto_commit:
        return "not committed"  # uncommitted messages before a dead letter are redelivered, and so is the dead letter
    if history.plan.java and history.java.explains(calls, settled):
        return CAUSE
    return next((one.what for one in history.causes if one.explains_attempts(calls)), None)


def _told(calls: list[Call]) -> str:
    return ", ".join(f"{call.key} by {call.member} at {call.began:.3f} s" for call in calls)
