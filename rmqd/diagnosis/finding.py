"""Finding: a problem that one rule found, with its identity; and phrases that rules share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmqd.diagnosis.causes import Problem
from rmqd.wire.message_queue import MessageQueue

MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem. Findings with the same `key` are the same one, seen at different moments."""

    key: tuple[str, ...]
    problem: Problem
    momentary: bool = False
    """Whether it may be true for a moment in a healthy group, so that it must be seen twice."""
    queues: frozenset[MessageQueue] = frozenset()
    """The queues that are stalled because of it, if it is about queues."""


def named(names: Iterable[str]) -> str:
    """Return some of the names in order: `a, b, c, d and 3 more`."""
    every = sorted(names)
    more = f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else ""
    return ", ".join(every[:MOST_NAMED]) + more


def places(queues: Iterable[MessageQueue]) -> str:
    """Return queues by topic and broker: `orders on broker-a: queues 0, 3`."""
    by_place: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues):
        by_place.setdefault((queue.topic, queue.broker_name), []).append(queue.queue_id)
    return "; ".join(
        f"{topic} on {broker}, queue{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"
        for (topic, broker), ids in by_place.items()
    )


def span(seconds: float) -> str:
    """Return a readable duration: `4 s`, `12 min`, `3 h`, `2 d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def count(number: int, noun: str) -> str:
    """Return `1 queue` or `2 queues`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def wait(number: int) -> str:
    """Return `1 message waits` or `2 messages wait`."""
    return f"{messages(number)} {'waits' if number == 1 else 'wait'}"


def messages(number: int) -> str:
    """Return `1 message` or `2 messages`."""
    return count(number, "message")
