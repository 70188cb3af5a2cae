"""The order in which a store deletes messages: oldest first, over all queues (`CleanCommitLogService`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from rmqd.broker.store.consume_queue import ConsumeQueue, QueueEntry

QueueKey = tuple[str, int]

NeededFrom = Callable[[str, int], int | None]
"""For a topic and queue id: the first offset whose message must stay; None if all may be deleted."""


class Oldest(NamedTuple):
    """A message that may be deleted."""

    key: QueueKey
    entry: QueueEntry


def oldest_first(queues: Mapping[QueueKey, ConsumeQueue], needed_from: NeededFrom) -> Iterator[Oldest]:
    """Yield the deletable messages of all queues, in the order in which they were stored."""
    heads: list[tuple[int, QueueKey, int, int]] = []
    for key, queue in queues.items():
        needed = needed_from(*key)
        end = queue.max_offset if needed is None else min(needed, queue.max_offset)
        first = queue.entry(queue.min_offset)
        if first is not None and queue.after(queue.min_offset) <= end:
            heads.append((first.commit_log_offset, key, queue.min_offset, end))
    heapify(heads)
    while heads:
        _, key, offset, end = heads[0]
        queue = queues[key]
        entry = queue.entry(offset)
        assert entry is not None  # between min_offset and max_offset
        yield Oldest(key, entry)
        after = queue.after(offset)
        following = queue.entry(after)
        if following is not None and queue.after(after) <= end:
            heapreplace(heads, (following.commit_log_offset, key, after, end))
        else:
            heappop(heads)
