"""Periodic commits of a group's offsets. Each round of commits also measures the lag of the group's queues.

Each broker has separate rounds of commits, so a broker that does not respond delays no commit at another broker.

When a suspended process resumes, its queues may have other owners. The process learns this only in its next rebalance.
Before that, it could commit in a round or in a pull. So the wait for a round is divided into short steps. A late step
shows that the process was suspended, and then the store checks the stored offsets before it commits.

`OffsetWatch` checks the stored offset of a queue while other clients may still change it: at the start of an ownership,
and after an interruption.

A broker reports an operator's reset in its response to the group's next pull of the queue, and then forgets the reset.
For up to 20 s, the broker may report the reset to an old pull, whose connection has ended or whose member has released
the queue. Then no member learns of the reset, and the new owner's next commit would undo it. So during this time the
owner requests the stored offset before each commit, and judges the response:

- The stored offset is one of this owner's commits, or the queue has no stored offset: commit.
- The stored offset is below all offsets known at the acquisition (`lowest_known`): only an operator stores such an
  offset. Do not commit. Within `RESET_REPORT_SECONDS` our own pull would have returned the reset. If the broker still
  has the offset after this time, the queue moves to it as if the pull had reported the reset.
- The stored offset is above all known offsets (`highest_known`): a previous owner has committed. Either its last commit
  was slow, or it is a client that other members do not wait for. Messages that both owners have finished count as
  handled twice. Commit if our offset is higher.

If the connection to the broker was lost, or this process was suspended, other members may regard this member as dead
and acquire its queues before it knows. So its first commit after that needs the same check. On a new connection a lower
stored offset is not treated as a reset, because the broker may have restarted and lost offsets that it had not written
to disk.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.services import OffsetWatcher
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot
from rmqd.errors import RmqdError
from rmqd.runtime.clock import Clock, suspended_seconds, wait_for_tick
from rmqd.wire.message_queue import MessageQueue

# a step of `_wait` may end this late: before other members acquire the queues, they wait longer than a step and this
TOLERATED_STEP_DELAY_SECONDS: Final = 1.0
QUEUES_PER_TURN: Final = 200  # after this number of queues, some milliseconds of work, a round lets other tasks run


class OffsetPersistence:
    """The rounds of commits of one group."""

    def __init__(
        self,
        context: GroupContext,
        assigned: Mapping[MessageQueue, Assignment],
        idle: dict[MessageQueue, QueueSnapshot | None] | None = None,
    ) -> None:
        """`idle` is `GroupContext.idle_queues`; without it every round includes all queues."""
        self._context = context
        self._assigned = assigned
        self._idle = idle
        self._connections: object = None  # the brokers' connections at the last round, by address
        self._busy: set[str] = set()  # brokers whose last round has not ended

    async def run(self) -> None:
        """Start a round every `persist_consumer_offset_interval`, until cancelled."""
        async with asyncio.TaskGroup() as rounds:
            while True:
                await self._wait(self._context.options.persist_consumer_offset_interval_seconds)
                self._start(rounds)

    async def commit_all(self) -> None:
        """Run one round at each broker."""
        async with asyncio.TaskGroup() as rounds:
            self._start(rounds)

    def _start(self, rounds: asyncio.TaskGroup) -> None:
        routes = self._context.client.routes
        due, idle = routes.by_endpoint(self._due()), routes.by_endpoint(self._unchecked())
        for broker_name in {**due, **idle}:
            if broker_name not in self._busy and routes.address(broker_name) is not None:
                self._busy.add(broker_name)
                assigned = [self._assigned[queue] for queue in due.get(broker_name, ())]
                work = self._round(broker_name, assigned, idle.get(broker_name, ()))
                rounds.create_task(work, name=f"persist:{broker_name}")

    def _due(self) -> Collection[MessageQueue]:
        """Return the queues that are not idle. After a reconnection, return all: the broker may have lost commits."""
        if self._idle is None:
            return self._assigned
        client = self._context.client
        connections = {address: client.remoting.connected(address) for address in client.routes.broker_addresses()}
        if connections != self._connections:
            self._connections = connections
            self._idle.clear()
        return [queue for queue in self._assigned if queue not in self._idle]

    def _unchecked(self) -> Collection[MessageQueue]:
        """Return the idle queues if a check is due that their offsets still exist: the group may have been deleted."""
        return list(self._idle) if self._idle and self._context.store.is_check_due() else ()

    def _may_check(self, queue: MessageQueue) -> bool:
        """Return whether a queue is still idle and owned: since the round began, it may have been reset or released."""
        is_idle = self._idle is not None and queue in self._idle
        return is_idle and not self._assigned[queue].is_releasing and self._context.ownership.holds(queue)

    async def _wait(self, seconds: float) -> None:
        """Wait in equal steps of at most 1 s. After a late step, the next commits check the stored offsets."""
        store, left = self._context.store, math.ceil(seconds)
        step_seconds = seconds / left

        def has_more() -> bool:
            nonlocal left
            if (now := self._now()) > store.carries_until:
                store.recheck_stored_offsets()
                if self._idle is not None:
                    self._idle.clear()
            store.carries_until = now + step_seconds + TOLERATED_STEP_DELAY_SECONDS
            left -= 1
            return left > 0

        store.carries_until = self._now() + step_seconds + TOLERATED_STEP_DELAY_SECONDS
        await wait_for_tick(self._context.clock, step_seconds, has_more)

    def _now(self) -> float:
        """Return a time in seconds that also counts while the machine is suspended."""
        return self._context.clock.monotonic() + suspended_seconds()

    async def _round(self, broker_name: str, assigned: list[Assignment], idle: Collection[MessageQueue]) -> None:
        context, holds = self._context, self._context.ownership.holds
        try:
            for start in range(0, len(assigned), QUEUES_PER_TURN):
                some = assigned[start : start + QUEUES_PER_TURN]
                offsets = {
                    one.message_queue: offset
                    for one in some
                    if (offset := one.commit_offset()) is not None and not one.is_releasing and holds(one.message_queue)
                }
                # The lag is measured at the same time, because a commit may have to wait for an earlier one.
                async with asyncio.TaskGroup() as tasks:
                    for measure in filter(None, [one.measure() for one in some]):
                        tasks.create_task(measure)
                    # This is not a task: a reset could arrive before the task starts, and be overwritten.
                    await context.store.persist(offsets)
                if self._idle is not None:
                    now = context.clock.monotonic()
                    self._idle.update(dict.fromkeys(one.message_queue for one in some if self._is_idle(one, now)))
                await asyncio.sleep(0)
            await context.store.check_stored([queue for queue in idle if self._may_check(queue)])
        finally:
            self._busy.discard(broker_name)

    def _is_idle(self, one: Assignment, now: float) -> bool:
        store, queue, offset = self._context.store, one.message_queue, one.commit_offset()
        if (
            offset is None
            or offset != store.committed.get(queue)
            or one.is_releasing
            or store.needs_commit(queue, offset)
        ):
            return False
        return one.is_idle(now)


OFFSET_WATCH_SECONDS: Final = 25.0  # a broker may hold an old pull for 20 s; 5 s more for a check after that
PULL_CHECK_PAUSE_FACTOR: Final = 5.0  # pause after a check ahead of a pull, as a multiple of the check's duration
RESET_REPORT_SECONDS: Final = 4.0  # within this time a pull of the owner returns a pending reset


@dataclass(slots=True)
class OffsetWatch:
    """Checks whether other clients have changed the stored offset of an owned queue. Times are monotonic."""

    watcher: OffsetWatcher
    until: float  # before this time, each commit needs a check of the stored offset
    on: RemotingConnection | None  # the connection of the last check that allowed a commit, or of the acquisition
    lowest_known: int  # only an operator stores a lower offset; 0 if no offset is known
    highest_known: int  # the highest known commit of this owner or of others
    lower_offset: int | None = None  # a stored offset that may be an operator's reset
    lower_offset_since: float = 0.0
    is_reset: bool = False  # the broker did not accept a commit, because a reset waits for the next pull
    may_have_lost_queue: bool = False  # whether another member may own the queue before this member knows
    next_pull_check_at: float = float("-inf")  # before this time, no pull waits for a check

    def needs_no_check(self, now: float) -> bool:
        """Return whether a commit needs no check of the stored offset."""
        return now >= self.until and self.lower_offset is None and not self.is_reset and not self.may_have_lost_queue

    async def may_pull_commit(self, clock: Clock, look: Callable[[], Awaitable[bool]]) -> bool:
        """Return whether the next pull may carry a commit, after `look` has checked the stored offset.

        Returns False if the check fails, or if it would follow the last one too soon and slow down the pulls.
        """
        if (began := clock.monotonic()) < self.next_pull_check_at:
            return False
        try:
            return await look()
        except RmqdError:
            return False
        finally:
            now = clock.monotonic()
            self.next_pull_check_at = now + PULL_CHECK_PAUSE_FACTOR * (now - began)

    def on_connection_lost(self) -> None:
        """Called when the broker has a new connection. The next check treats no lower stored offset as a reset."""
        self._forget()
        self.may_have_lost_queue = True

    def on_reset(self, offset: int) -> None:
        """Called when this member learns that an operator has reset the queue to `offset`. Ends the watch."""
        self._forget()
        self.may_have_lost_queue, self.highest_known = False, offset

    def may_commit(self, stored: int | None, offset: int, ours: frozenset[int], now: float) -> bool:
        """Judge the broker's `stored` offset. Return whether to commit `offset`; `ours` are this owner's commits."""
        if stored is None:
            return True
        if stored in ours:
            self.lower_offset = None
            return True
        if stored < self.lowest_known or self.is_reset:
            self._lower(stored, now)
            return False
        self.lower_offset = None
        if stored > self.highest_known:
            self.watcher.count_handled_twice(stored - self.highest_known)
            self.highest_known = stored
        return offset > stored

    def _forget(self) -> None:
        self.until, self.lowest_known, self.lower_offset, self.is_reset = float("-inf"), 0, None, False

    def _lower(self, stored: int, now: float) -> None:
        if stored != self.lower_offset:
            self.lower_offset, self.lower_offset_since = stored, now
        elif now - self.lower_offset_since >= RESET_REPORT_SECONDS:
            self.lower_offset_since = float("inf")  # so that the reset is reported only once
            self.watcher.move_to(stored)
