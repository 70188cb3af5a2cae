"""Bugs in commits of offsets to brokers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.offsets.pending_commits import FirstCommits, UnansweredCommits
from rmqd.consumer.offsets.persistence import OffsetPersistence, OffsetWatch
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.pull.pull_request import repeat_until_answered
from rmqd.consumer.pull.queue_release import QueueRelease
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue
from tests.nightly.simulation.planted.registry import (
    both,
    calm,
    concurrently,
    either,
    happens,
    orderly,
    plant,
    tries,
)
from tests.simulation.plan import Plan

Answer = tuple[bool, RemotingConnection | None]
pulls = either(concurrently, orderly)


def is_whole(plan: Plan) -> bool:
    """A clustering group with rmqd members only."""
    return not (plan.is_broadcasting or plan.java)


def begins_with_many_queues(plan: Plan) -> bool:
    """A new group that begins at the first offset of several queues of one broker."""
    return plan.consume_from_where == "first_offset" and max(plan.queues) >= 3


hands_over_calmly = both(calm, pulls, is_whole, happens("join", "leave", least=4))


@plant
def never_committed_between(patch: pytest.MonkeyPatch) -> None:
    """Offsets are committed only when a queue is released: if a member dies, all of them are lost."""

    async def a_round(self: OffsetPersistence, broker_name: str, assigned: Any, idle: Any) -> None:
        self._busy.discard(broker_name)

    patch.setattr(OffsetPersistence, "_round", a_round)


@plant(needs=tries("refuse_commits"))
def one_failed_round_ends_the_commits(patch: pytest.MonkeyPatch) -> None:
    """After a failed commit, nothing more is committed to that broker until queues are released."""
    right = OffsetPersistence._round

    async def a_round(self: OffsetPersistence, broker_name: str, assigned: Any, idle: Any) -> None:
        before = self._context.store.failures
        await right(self, broker_name, assigned, idle)
        if self._context.store.failures > before:
            self._busy.add(broker_name)

    patch.setattr(OffsetPersistence, "_round", a_round)


@plant
def offsets_of_the_wrong_queue(patch: pytest.MonkeyPatch) -> None:
    """Each queue of a round gets the offset of the previous queue."""
    right = RemoteBrokerOffsetStore.persist

    async def persist(self: RemoteBrokerOffsetStore, offsets: Mapping[MessageQueue, int]) -> bool:
        queues = [*offsets]
        return await right(self, dict(zip(queues, [*offsets.values()][-1:] + [*offsets.values()][:-1], strict=True)))

    patch.setattr(RemoteBrokerOffsetStore, "persist", persist)


@plant(needs=tries("refuse_commits"))
def committed_before_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A commit counts as stored once it is sent, even if it then fails, and is not retried."""
    right = RemoteBrokerOffsetStore._update

    async def update(self: RemoteBrokerOffsetStore, queue: MessageQueue, offset: int) -> Answer:
        self.committed[queue] = offset
        return await right(self, queue, offset)

    patch.setattr(RemoteBrokerOffsetStore, "_update", update)


@plant(needs=tries("refuse_commits"))
def refused_commit_counts(patch: pytest.MonkeyPatch) -> None:
    """A failed commit counts as stored."""
    right = RemoteBrokerOffsetStore._update

    async def update(self: RemoteBrokerOffsetStore, queue: MessageQueue, offset: int) -> Answer:
        try:
            return await right(self, queue, offset)
        except RmqdError:
            return True, self._connection(queue)

    patch.setattr(RemoteBrokerOffsetStore, "_update", update)


@plant(needs=tries("hand_over_late"))
def commits_out_of_turn(patch: pytest.MonkeyPatch) -> None:
    """Several commits of one queue are in flight at once, and the broker processes them in any order."""
    right = RemoteBrokerOffsetStore.__init__

    def init(self: RemoteBrokerOffsetStore, *arguments: Any) -> None:
        right(self, *arguments)
        self._turns = _OtherLocks(asyncio.Lock)

    patch.setattr(RemoteBrokerOffsetStore, "__init__", init)


class _OtherLocks(defaultdict[MessageQueue, asyncio.Lock]):
    def __missing__(self, queue: MessageQueue) -> asyncio.Lock:
        return asyncio.Lock()


@plant(needs=tries("hand_over_late"))
def commit_ends_with_its_caller(patch: pytest.MonkeyPatch) -> None:
    """A commit whose caller is cancelled frees its turn; the broker may process it late and undo the next commit."""

    async def send(self: RemoteBrokerOffsetStore, queue: MessageQueue, work: Coroutine[None, None, bool]) -> bool:
        return await work

    patch.setattr(RemoteBrokerOffsetStore, "_send", send)


@plant(needs=tries("rewind", "rewind_by_push"))
def commits_of_a_former_ownership(patch: pytest.MonkeyPatch) -> None:
    """Commits decided before a queue's release or reset are sent afterwards, although they are obsolete."""
    patch.setattr(RemoteBrokerOffsetStore, "_epoch", lambda self, queue: 0)


@plant(needs=tries("delay_commits"))
def unanswered_commits_forgotten(patch: pytest.MonkeyPatch) -> None:
    """An unanswered commit counts as never sent; processed late, it undoes later commits."""
    patch.setattr(UnansweredCommits, "record_failed", lambda self, queue, offset, error: None)


@plant(needs=tries("lose_offsets"))
def lost_offsets_not_stored_again(patch: pytest.MonkeyPatch) -> None:
    """Offsets that a restarted broker has lost are not stored again while the group has nothing new to commit."""
    patch.setattr(RemoteBrokerOffsetStore, "may_be_lost", lambda self, queue: False)
    patch.setattr("rmqd.consumer.offsets.broker_store.OFFSET_CHECK_SECONDS", float("inf"))


@plant(needs=tries("suspend_and_leave"))
def stored_offset_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """A member that releases a queue commits, although the next owner has begun and has committed more."""

    async def upward(
        self: RemoteBrokerOffsetStore, queue: MessageQueue, offset: int, epoch: int, may_commit: Callable[[], bool]
    ) -> bool:
        async with self._turns[queue]:
            return await self._write(queue, offset, epoch, may_commit)

    patch.setattr(RemoteBrokerOffsetStore, "_upward", upward)


@plant(needs=tries("suspend"))
def committed_downward(patch: pytest.MonkeyPatch) -> None:
    """Rounds commit the cache's offset even if it is below the committed offset."""
    patch.setattr(RemoteBrokerOffsetStore, "_is_news", lambda self, queue, offset: True)
    patch.setattr(OffsetWatch, "may_commit", lambda self, stored, offset, ours, now: True)


@plant(needs=tries("suspend_and_leave"))
def committed_after_the_time(patch: pytest.MonkeyPatch) -> None:
    """A previous owner commits at any later time, without a check for a new owner."""
    patch.setattr(QueueRelease, "_may_commit", lambda self: True)
    stored_offset_not_looked_at(patch)


@plant(needs=tries("suspend"))
def commits_of_the_first_seconds_unwatched(patch: pytest.MonkeyPatch) -> None:
    """After the acquisition of a queue, commits of other members are not checked."""
    patch.setattr(OffsetWatch, "may_commit", lambda self, stored, offset, ours, now: True)


@plant(needs=hands_over_calmly)
def begins_where_it_was_before(patch: pytest.MonkeyPatch) -> None:
    """A member that acquires a queue again continues at its old offset, whatever others have committed since."""
    right, left = RemoteBrokerOffsetStore.read, dict[tuple[int, MessageQueue], int]()
    forget = RemoteBrokerOffsetStore.forget

    def forgotten(self: RemoteBrokerOffsetStore, queue: MessageQueue) -> None:
        if queue in self.committed:
            left[id(self), queue] = self.committed[queue]
        forget(self, queue)

    async def read(self: RemoteBrokerOffsetStore, queue: MessageQueue) -> int | None:
        return left.get((id(self), queue)) or await right(self, queue)

    patch.setattr(RemoteBrokerOffsetStore, "forget", forgotten)
    patch.setattr(RemoteBrokerOffsetStore, "read", read)


@plant(needs=hands_over_calmly)
def begins_before_it_has_the_lock(patch: pytest.MonkeyPatch) -> None:
    """The stored offset is read before the previous owner has released the queue, and so before its last commit."""
    right = AssignedQueue._own

    async def own(self: AssignedQueue) -> None:
        start = await repeat_until_answered(self._context, self.message_queue, self._start)

        async def known() -> Any:
            return start

        self._start = known  # type: ignore[method-assign]
        await right(self)

    patch.setattr(AssignedQueue, "_own", own)


@plant
def begins_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """A queue without a stored offset begins at its end, even if the group must begin at the first one."""
    from rmqd.client.api.offset_requests import get_max_offset
    from rmqd.consumer.offsets.start_offsets import StartOffsetPolicy

    async def first(self: StartOffsetPolicy, queue: MessageQueue) -> int:
        return await self._ask(get_max_offset, queue)

    patch.setattr(StartOffsetPolicy, "_first", first)


@plant(needs=both(orderly, tries("suspend")))
def consumed_elsewhere_unnoticed(patch: pytest.MonkeyPatch) -> None:
    """After a lock is lost and regained, the member does not check whether another member owned the queue meanwhile."""
    patch.setattr(RemoteBrokerOffsetStore, "may_have_committed", lambda self, queue, stored: True)


@plant(needs=orderly)
def cache_dropped_when_a_lock_is_won_back(patch: pytest.MonkeyPatch) -> None:
    """A member that gets a lock back discards its cache, and counts these messages as finished."""

    async def win_back(self: AssignedQueue, loop: PullLoop) -> None:
        await self._context.ownership.acquire(self.message_queue, self._lost)
        self._is_doubtful = False
        loop.restart_at(loop.process_queue.next_offset, "lock_lost")

    patch.setattr(AssignedQueue, "_win_back", win_back)


@plant(needs=both(pulls, is_whole, begins_with_many_queues))
def first_commits_side_by_side(patch: pytest.MonkeyPatch) -> None:
    """A group's first commits of a topic are sent in parallel, so each creates the broker's table again."""
    patch.setattr(FirstCommits, "has_table", lambda self, queue: True)
