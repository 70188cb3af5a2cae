"""The order in which a new group's offsets are stored, so that a founding that was cut short can be recognised. Pure.

A topic grows upward: the queues of a known group that came later have higher ids, on their broker, than those that it
has offsets of. So the founding goes downward. While it is under way, and after it was killed, some queue without an
offset lies below one with an offset, which no growth brings about.

A topic that has one queue on a broker cannot show that. Such queues are stored between the others, next to last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from rmqd.wire.message_queue import MessageQueue

_SINGLE = 0.5  # after the second lowest queues, before the lowest


def in_levels(queues: Iterable[MessageQueue]) -> list[list[MessageQueue]]:
    """The queues in the order in which they are to be stored; those of one level in any order."""
    levels: dict[float, list[MessageQueue]] = defaultdict(list)
    for ids in _by_place(queues).values():
        for rank, queue in enumerate(ids):
            levels[rank if len(ids) > 1 else _SINGLE].append(queue)
    return [sorted(levels[level]) for level in sorted(levels, reverse=True)]


def is_unfinished(queues: Iterable[MessageQueue], stored: Collection[MessageQueue]) -> bool:
    """Whether a founding has not ended, where of these queues only those in `stored` have an offset."""
    for ids in _by_place(queues).values():
        has = [queue in stored for queue in ids]
        if has != sorted(has, reverse=True):
            return True
    return False


def _by_place(queues: Iterable[MessageQueue]) -> dict[tuple[str, str], list[MessageQueue]]:
    """By topic and broker, each in the order of queue ids."""
    places: dict[tuple[str, str], list[MessageQueue]] = defaultdict(list)
    for queue in sorted(queues):
        places[queue.topic, queue.broker_name].append(queue)
    return places
