"""Whether a queue, and the member that has it, went where an operator sent it.

What a broker answers is not proof. It has the new offset at once, and until a pull of the group takes the reset it
answers commits with success and stores nothing. A pull may take it whose connection is gone: then the member goes on
where it was, and its next commit undoes the reset (docs/ownership.md). So the member is asked for its own offset `at`:

    forward    at is not below the target, and neither is what is stored
    back       at is below where the member was; or its cache was made anew since, which both rmqd and Java do: then the
               queue may have caught up since the look before

In both cases what is stored is not above `at`: a commit that was under way may have undone the reset until the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqd.client.resets.places import QueuePlace
    from rmqd.wire.bodies.running_info import ProcessQueueInfo


def has_obeyed(target: int, before: QueuePlace, now: QueuePlace) -> bool:
    """Whether the member that has the queue now goes on from the target. `before` is a look ahead of the reset."""
    if now.held is None:
        return is_told(target, before, now)
    at = now.held.commit_offset
    if now.committed is None or not target <= now.committed <= at:
        return False
    begun = _at(before)
    if begun is None or target >= begun:
        return True
    if before.owner != now.owner or before.held is None:
        return at < (before.committed or 0)
    return at < begun or _is_new(before.held, now.held, is_orderly=now.is_orderly)


def is_told(target: int, before: QueuePlace, now: QueuePlace) -> bool:
    """The same of a member that does not say where it is: whether what is stored can only come from the target."""
    if now.committed is None:
        return False
    return target < now.committed and (before.committed is None or before.committed <= target
                                       or now.committed < before.committed)  # fmt: skip


def is_lost(target: int, before: QueuePlace, now: QueuePlace) -> bool:
    """Whether the broker has told the reset, as it takes commits again, and the member has not heard of it.

    Known of the member alone that had the queue before, and says where it is.
    """
    if now.held is None or before.held is None or now.owner != before.owner or now.committed is None:
        return False
    is_pending = now.committed == target
    return not is_pending and now.held.commit_offset >= before.held.commit_offset


def is_stored(target: int, now: QueuePlace) -> bool:
    """Whether the broker has the target, or what was handed out from there on since."""
    return now.committed is not None and now.committed >= target


def _at(place: QueuePlace) -> int | None:
    return place.committed if place.held is None else place.held.commit_offset


def _is_new(before: ProcessQueueInfo, now: ProcessQueueInfo, *, is_orderly: bool) -> bool:
    """Whether a member's cache of a queue is another one than before.

    Java gives a cache the time of its making as that of its last lock, and so does rmqd. In an orderly group that is
    when the lock was renewed, so there it counts whether messages were handled since.
    """
    if is_orderly:
        return now.last_consume_timestamp > before.last_consume_timestamp
    return now.last_lock_timestamp > before.last_lock_timestamp
