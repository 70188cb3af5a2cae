"""Bugs in the ownership and the locks of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.rebalance.membership import MissingMembers
from rmqd.consumer.rebalance.ownership import QueueOwnership
from rmqd.consumer.rebalance.queue_lock import QueueLease, QueueLock
from rmqd.runtime.clock import SystemClock
from rmqd.wire.message_queue import MessageQueue
from tests.nightly.simulation.planted.registry import (
    both,
    calm,
    concurrently,
    hands_over,
    orderly,
    plant,
    pulled,
    slow,
    tries,
)


@plant(needs=both(hands_over, slow, concurrently))
def former_owner_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A new owner begins without a request for the queue's lock."""

    async def acquire(
        self: QueueOwnership, queue: MessageQueue, on_lost: Any, max_notice_delay_seconds: float = 0.0
    ) -> bool:
        self._owned.add(queue)
        return True

    patch.setattr(QueueOwnership, "acquire", acquire)


@plant(needs=both(hands_over, slow, concurrently))
def former_owner_waited_for_too_short(patch: pytest.MonkeyPatch) -> None:
    """A new owner begins after half a second, whether or not the previous owner has ended."""
    right = QueueOwnership.__init__

    def init(self: QueueOwnership, client: Any, group: str, timeout_seconds: float, clock: SystemClock) -> None:
        right(self, client, group, 0.5, clock)

    patch.setattr(QueueOwnership, "__init__", init)


@plant(needs=tries("blink"))
def first_second_alone(patch: pytest.MonkeyPatch) -> None:
    """A member that sees no others acquires queues at once, though others may only have lost their connections."""
    patch.setattr("rmqd.consumer.rebalance.ownership.MISSING_MEMBER_SECONDS", 0.0)
    patch.setattr("rmqd.consumer.rebalance.membership.MISSING_MEMBER_SECONDS", 0.0)
    patch.setattr("rmqd.consumer.rebalance.membership.MEMBER_RETURN_SECONDS", 0.0)


@plant(needs=tries("blink"))
def locks_broken_at_once(patch: pytest.MonkeyPatch) -> None:
    """The locks of a member whose connection was cut are broken before the member could return."""
    patch.setattr("rmqd.consumer.rebalance.membership.MISSING_MEMBER_SECONDS", 0.0)
    patch.setattr("rmqd.consumer.rebalance.membership.MEMBER_RETURN_SECONDS", 0.0)


@plant(needs=tries("blink"))
def gone_between_two_looks(patch: pytest.MonkeyPatch) -> None:
    """A member that is missing from two lists counts as gone, although brokers reported its return in between."""
    patch.setattr(MissingMembers, "on_members_changed", lambda self: None)


@plant(needs=both(tries("blink"), lambda plan: len(plan.queues) > 1))
def locks_of_members_elsewhere_broken(patch: pytest.MonkeyPatch) -> None:
    """A member that is missing from one broker's list counts as gone, although another broker lists it."""

    def note(self: MissingMembers, address: str, client_ids: Any) -> list[str]:
        now = self._clock.monotonic()
        for client_id in self._lists.get(address, frozenset()).difference(client_ids):
            self.first_missing_at.setdefault(client_id, now - 10.0)
        self._lists[address] = frozenset(client_ids)
        return []

    patch.setattr(MissingMembers, "_note", note)


@plant(needs=both(concurrently, tries("kill"), lambda plan: plan.seed % 2 == 1))
def locks_of_the_dead_kept(patch: pytest.MonkeyPatch) -> None:
    """Locks of a killed member are not broken, so the next owner waits for the hand-over timeout."""

    async def break_locks(self: QueueOwnership, topic: str, queues: Iterable[MessageQueue]) -> None:
        return None

    patch.setattr(QueueOwnership, "break_locks", break_locks)


@plant(needs=both(concurrently, tries("move")))
def owner_locks_not_renewed(patch: pytest.MonkeyPatch) -> None:
    """Ownership locks are not renewed and expire after a minute."""

    async def claim(self: QueueOwnership, queues: Iterable[MessageQueue]) -> None:
        return None

    patch.setattr(QueueOwnership, "_claim", claim)


@plant(needs=orderly)
def orderly_lock_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A member of an orderly group begins without the queue's lock."""

    async def acquire(
        self: QueueLock, queue: MessageQueue, on_lost: Any, max_notice_delay_seconds: float = 0.0
    ) -> bool:
        self._answered(queue, granted=False, until=0.0)
        self._leases[queue] = _ForEver(self._now, float("inf"), None, on_lost)
        return True

    patch.setattr(QueueLock, "acquire", acquire)


class _ForEver(QueueLease):
    @property
    def holds(self) -> bool:
        return True

    def renew(self, until: float, on: Any) -> None:
        """Do nothing: the lease never expires."""


@plant(needs=both(tries("lose_locks"), lambda plan: plan.batch_size == 1))
def orderly_lock_lasts_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A member of an orderly group continues with a lock that it could not renew."""
    patch.setattr(QueueLease, "holds", property(lambda self: True))


@plant(needs=both(tries("restart_and_join"), lambda plan: plan.batch_size == 1))
def orderly_lock_outlives_its_connection(patch: pytest.MonkeyPatch) -> None:
    """A lock counts for 30 s although its broker may have been restarted and have forgotten it."""
    patch.setattr(QueueLease, "holds", property(lambda self: self._clock() < self._until))


@plant(needs=tries("restart"))
def orderly_lock_of_a_restarted_broker_taken(patch: pytest.MonkeyPatch) -> None:
    """A member that was locked out gets a lock that a restarted broker has forgotten, before its owner requests it."""
    patch.setattr("rmqd.consumer.rebalance.queue_lock.BROKER_RESTART_SECONDS", 0.0)


@plant(needs=both(calm, orderly, pulled))
def orderly_lock_not_renewed(patch: pytest.MonkeyPatch) -> None:
    """An orderly group's locks are not renewed, and expire again and again."""
    patch.setattr("rmqd.consumer.rebalance.queue_lock.RENEW_INTERVAL_SECONDS", float("inf"))


@plant(needs=orderly)
def orderly_lock_that_is_lost_stops_nobody(patch: pytest.MonkeyPatch) -> None:
    """A lost lock does not stop its member, and on the new grant it does not check for another owner meanwhile."""
    patch.setattr(QueueLease, "notify_owner", lambda self: None)


@plant(needs=both(hands_over, slow, orderly))
def unlocked_while_a_handler_runs(patch: pytest.MonkeyPatch) -> None:
    """An orderly queue is released after the hand-over time, although a handler still has a batch of it."""
    patch.setattr(QueueLock, "start_grace_period", lambda self, queue: 0.0)
    patch.setattr("rmqd.consumer.assigned.assignment.ReleaseSignal.drain", _no_wait)


async def _no_wait(self: Any, process_queues: Any) -> bool:
    return not any(one.in_flight for one in process_queues)


@plant(needs=orderly)
def locks_asked_for_after_they_were_given_up(patch: pytest.MonkeyPatch) -> None:
    """A lock request may arrive after the unlock of the same queue: then the queue has no owner."""
    right = QueueLock.release

    async def release(self: QueueLock, queue: MessageQueue) -> None:
        await right(self, queue)
        await self._locks.lock(self._locks.broker_of(queue), [queue])

    patch.setattr(QueueLock, "release", release)


@plant(needs=tries("win_back"))
def won_back_and_not_handed_out(patch: pytest.MonkeyPatch) -> None:
    """After a lock is regained, the cache is handed out only with the next messages."""

    async def win_back(self: AssignedQueue, loop: PullLoop) -> None:
        await self._context.ownership.acquire(self.message_queue, self._lost)
        self._is_doubtful = False

    patch.setattr(AssignedQueue, "_win_back", win_back)


@plant(needs=orderly)
def lock_that_is_lost_is_not_won_back(patch: pytest.MonkeyPatch) -> None:
    """After its lock was in doubt once, a queue is pulled, but no longer handed out."""
    right = QueueLock.acquire

    async def acquire(
        self: QueueLock, queue: MessageQueue, lost: Callable[[], None], max_notice_delay_seconds: float = 0.0
    ) -> bool:
        if queue in self._leases:
            await self._clock.sleep(10.0**6)
        return await right(self, queue, lost, max_notice_delay_seconds)

    patch.setattr(QueueLock, "acquire", acquire)
