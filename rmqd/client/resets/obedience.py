"""Whether a queue, and its owner, continue at an operator's new offset.

A broker's response is not proof. The broker has the new offset at once. Until a pull of the group takes the reset, it
answers commits with success and stores nothing. The pull that takes it may belong to a lost connection: then the member
continues at its old offset, and its next commit undoes the reset (docs/proof/ownership.md). So the member is asked for
its own offset `at`:

    forward    neither `at` nor the stored offset is below the target
    back       `at` is below the member's previous offset; or it replaced its cache, which both rmqd and Java do. Then
               the queue may have caught up since the previous poll.

In both cases the stored offset is not above `at`: a commit in flight may undo the reset until the next commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rmqd.client.resets.places import QueuePlace
    from rmqd.wire.bodies.running_info import ProcessQueueInfo


def has_obeyed(target: int, before: QueuePlace, now: QueuePlace) -> bool:
    """Return whether the queue's present owner continues at the target. `before` is from before the reset."""
    if now.held is None:
        return _is_proven_by_offset(target, before, now)
    at = now.held.commit_offset
    if now.committed is None or not target <= now.committed <= at:
        return False
    begun = _at(before)
    if begun is None or target >= begun:
        return True
    if before.owner != now.owner or before.held is None:
        return at < (before.committed or 0)
    return at < begun or _is_new(before.held, now.held, is_orderly=now.is_orderly)


def _is_proven_by_offset(target: int, before: QueuePlace, now: QueuePlace) -> bool:
    """Return the same for a member that does not report its offset: whether the stored offset proves the reset."""
    if now.committed is None:
        return False
    return target < now.committed and (before.committed is None or before.committed <= target
                                       or now.committed < before.committed)  # fmt: skip


def is_lost(target: int, before: QueuePlace, now: QueuePlace) -> bool:
    """Return whether the broker's reset was lost: the broker accepts commits again, and the member never received it.

    Only known if the owner is still the same, and reports its offset.
    """
    if now.held is None or before.held is None or now.owner != before.owner or now.committed is None:
        return False
    is_pending = now.committed == target
    return not is_pending and now.held.commit_offset >= before.held.commit_offset


def is_stored(target: int, now: QueuePlace) -> bool:
    """Return whether the broker has the target, or a later commit."""
    return now.committed is not None and now.committed >= target


def _at(place: QueuePlace) -> int | None:
    return place.committed if place.held is None else place.held.commit_offset


def _is_new(before: ProcessQueueInfo, now: ProcessQueueInfo, *, is_orderly: bool) -> bool:
    """Return whether a member has replaced its cache of a queue.

    Java sets a cache's last lock time when it is created, and so does rmqd. In an orderly group this is the time when
    the lock was renewed, so there the last consume time counts.
    """
    if is_orderly:
        return now.last_consume_timestamp > before.last_consume_timestamp
    return now.last_lock_timestamp > before.last_lock_timestamp
