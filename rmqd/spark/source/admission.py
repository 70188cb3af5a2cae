"""The share of a backlog that one batch takes. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from rmqd.wire.message_queue import MessageQueue


def share(backlog: Mapping[MessageQueue, int], most: int) -> dict[MessageQueue, int]:
    """Return how many messages each queue contributes to a batch of at most `most`, in proportion to its backlog.

    Each queue with messages contributes at least one, so that none starves. The total is `most` or the whole backlog;
    it is higher only if there are more such queues than `most`.
    """
    waiting = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    total = sum(waiting.values())
    if total <= most:
        return waiting
    taken = {queue: max(1, count * most // total) for queue, count in waiting.items()}
    rest = most - sum(taken.values())
    # the largest queues absorb the rounding error, and the minimum of the small queues
    for queue in sorted(waiting, key=lambda queue: (-waiting[queue], queue)):
        if rest == 0:
            break
        change = min(rest, waiting[queue] - taken[queue]) if rest > 0 else -min(-rest, taken[queue] - 1)
        taken[queue] += change
        rest -= change
    return taken


def share_bytes(
    backlog: Mapping[MessageQueue, int], sizes: Mapping[MessageQueue, float], most_bytes: int
) -> dict[MessageQueue, int]:
    """Do the same for bytes; `sizes` are the mean message sizes of the queues."""
    waiting = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    total = sum(count * sizes[queue] for queue, count in waiting.items())
    if total <= most_bytes:
        return waiting
    return {queue: max(1, int(count * most_bytes / total)) for queue, count in waiting.items()}
