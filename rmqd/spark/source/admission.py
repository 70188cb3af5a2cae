"""How much of a backlog one batch takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rmqd.wire.message_queue import MessageQueue


def share(backlog: Mapping[MessageQueue, int], most: int) -> dict[MessageQueue, int]:
    """How many of at most `most` messages each queue may give, in proportion to what waits in it.

    Each queue in which something waits gives one at least, so that none starves: where there are more such queues than
    `most`, that is more. Otherwise it is `most` in all, or everything.
    """
    waiting = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    total = sum(waiting.values())
    if total <= most:
        return waiting
    taken = {queue: max(1, count * most // total) for queue, count in waiting.items()}
    rest = most - sum(taken.values())
    # what rounding left over, or what the small queues got above their part, is the largest queues' matter
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
    """The same for bytes: `sizes` are the queues' mean message sizes."""
    waiting = {queue: count for queue, count in sorted(backlog.items()) if count > 0}
    total = sum(count * sizes[queue] for queue, count in waiting.items())
    if total <= most_bytes:
        return waiting
    return {queue: max(1, int(count * most_bytes / total)) for queue, count in waiting.items()}
