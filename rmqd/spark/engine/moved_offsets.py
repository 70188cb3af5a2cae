"""Finds offsets on the brokers that the query did not commit, and describes them."""

from __future__ import annotations

from typing import Final

from rmqd.spark.source.offsets import ByQueue
from rmqd.wire.message_queue import MessageQueue

SHOWN: Final = 4


def moves(done: ByQueue, held: ByQueue, stored: ByQueue) -> dict[MessageQueue, int]:
    """Return the queues with a `stored` offset that the query cannot have committed, with that offset.

    `done` are the checkpoint's offsets, `held` the offsets that brokers are known to have on disk, and `stored` the
    brokers' current offsets.
    """
    return {
        queue: offset
        for queue, offset in stored.items()
        if queue in done and (offset > done[queue] or offset < min(done[queue], held.get(queue, 0)))
    }


def reason_of(done: ByQueue, changed: ByQueue) -> str:
    """Describe why queues continue at the offsets of `changed`, for logs and the note."""
    ahead = {queue: offset for queue, offset in changed.items() if offset > done.get(queue, 0)}
    back = {queue: offset for queue, offset in changed.items() if queue not in ahead}
    parts = []
    if ahead:
        parts.append(f"the group was consumed elsewhere, or moved forward: {_changes(done, ahead)}")
    if back:
        parts.append(f"the group was reset: {_changes(done, back)}")
    return "; ".join(parts)


def _changes(done: ByQueue, to: ByQueue) -> str:
    shown = [f"{queue} from {done.get(queue, 'nowhere')} to {to[queue]}" for queue in sorted(to)[:SHOWN]]
    return ", ".join(shown) + (f" and {len(to) - SHOWN} more queues" if len(to) > SHOWN else "")
