"""The order of storing a new group's offsets, which shows whether an earlier attempt was interrupted. Pure functions.

A topic grows upward: queues added to an existing group have higher ids, on their broker, than the queues with offsets.
So a new group's offsets are stored downward. While that is incomplete, some queue without an offset has a lower id than
a queue with one, which growth never causes.

If a topic has a single queue on a broker, its order shows nothing. Such queues are stored next to last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from rmqd.wire.message_queue import MessageQueue

_SINGLE = 0.5  # after the second lowest queues, before the lowest


def in_levels(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    """Return the queues in the order of storing. The queues of one level may be stored in any order."""
    levels: dict[float, list[MessageQueue]] = defaultdict(list)
    for ids in _by_place(queues).values():
        for rank, queue in enumerate(ids):
            levels[rank if len(ids) > 1 else _SINGLE].append(queue)
    return [sorted(levels[level]) for level in sorted(levels, reverse=True)]


def is_unfinished(queues: Iterable[MessageQueue], stored: Collection[MessageQueue]) -> bool:
    """Return whether storing was interrupted, given that of these queues only those in `stored` have an offset."""
    for ids in _by_place(queues).values():
        has = [queue in stored for queue in ids]
        if has != sorted(has, reverse=True):
            return True
    return False


def _by_place(queues: Iterable[MessageQueue]) -> dict[tuple[str, str], list[MessageQueue]]:
    """Return the queues by topic and broker, each in the order of queue ids."""
    places: dict[tuple[str, str], list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        places[queue.topic, queue.broker_name].append(queue)
    return places
