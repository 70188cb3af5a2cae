"""The group's offsets on the brokers: read when a queue is acquired, written every few seconds and at the release."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping
from functools import partial

import structlog

from rmqd.client.api.offset_requests import StoredOffset, query_stored_offset, update_consumer_offset
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.offsets.pending_commits import (
    Commit,
    ConfirmedOffset,
    FirstCommits,
    OffsetRead,
    PullCommit,
    PullCommits,
    UnansweredCommits,
    log_failed_commits,
)
from rmqd.consumer.offsets.persistence import OFFSET_WATCH_SECONDS, OffsetWatch
from rmqd.consumer.services import CarriedCommit, GroupOffsetStore, OffsetWatcher
from rmqd.errors import RmqdError, SlaveOffsetMissingError
from rmqd.errors.broker_errors import BrokerError
from rmqd.runtime.clock import Clock, suspended_seconds
from rmqd.wire.bodies.route_data import is_logical_broker
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

OFFSET_TIMEOUT_SECONDS = 5.0  # Java: updateConsumerOffset
OFFSET_CHECK_SECONDS = 30.0  # interval of checks that the broker still has an offset: the group may have been deleted


class RemoteBrokerOffsetStore(GroupOffsetStore):
    """The offsets of a clustering group. Only a reset or a correction lowers the offset of an owned queue.

    *One commit at a time.* A broker's threads may execute two requests of one connection in any order, so the lower of
    two offsets could remain. So each queue has a lock (`_turns`), and the next commit of the queue is sent only after
    the response to the previous one. A commit runs in a separate task, which continues if the caller is cancelled.

    *Epochs.* While a commit waits for the lock, an operator may reset the queue, or the queue may be released and
    acquired again. Both increase the queue's epoch (`_epochs`). A commit is sent only in the epoch in which it was
    decided, so never after a later reset. A commit that may lower the offset (`downward`) is kept in `_resets` until a
    response confirms it.

    *Offsets that a broker may have lost.* A restarted broker, or a replica in its place, may have a lower offset than
    the committed one, because the last seconds were not flushed or not replicated. So an offset is committed again if
    the present connection is not the connection that confirmed it (`_written`). See docs/proof/ownership.md.
    """

    def __init__(self, client: ClientInstance, group: str, clock: Clock) -> None:
        super().__init__()
        self._client = client
        self._group = group
        self._clock = clock
        self._turns: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._firsts = FirstCommits(self._connection)
        self._written: dict[MessageQueue, ConfirmedOffset] = {}
        self._resets: set[MessageQueue] = set()  # queues with an unconfirmed reset
        self._epochs: dict[MessageQueue, int] = {}  # queue -> number of its resets and releases so far
        self._unanswered = UnansweredCommits(clock)
        self._pulls = PullCommits(clock, self._unanswered, self._stored_by_pull)
        self._watches: dict[MessageQueue, OffsetWatch] = {}
        self._under_way: set[asyncio.Task[bool]] = set()

    async def close(self) -> None:
        """Cancel the commits whose callers no longer wait for them."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def read(self, queue: MessageQueue) -> int | None:
        """Wait for the current commit of the queue, then return the stored offset; None if the broker has none.

        Raises RmqdError. Raises SlaveUnawareError if only a slave responds and has no offset, which proves nothing.
        """
        found = await self.query_stored(queue)
        return None if found is None else found.offset

    async def query_stored(self, queue: MessageQueue) -> StoredOffset | None:
        """Return the stored offset, and whether it is certain: a 4.x broker's 0 may mean none. Raises like `read`."""
        async with self._alone(queue):
            return await self._prove(queue)

    async def _prove(self, queue: MessageQueue) -> StoredOffset | None:
        broker = self._client.routes.endpoint(queue)
        is_slave = self._client.routes.master(broker) is None
        found = await self._look_up(queue)
        if is_slave and (found is None or not found.is_certain):
            why = f"the master has no route, and the slave does not know the offset of {queue}"
            raise SlaveOffsetMissingError(broker, why)
        return found

    async def _look_up(self, queue: MessageQueue) -> StoredOffset | None:
        remoting, address = self._client.remoting, self._client.routes.address_for(queue)
        return await query_stored_offset(remoting, address, self._group, queue, timeout_seconds=OFFSET_TIMEOUT_SECONDS)

    async def _query(self, queue: MessageQueue) -> int | None:
        found = await self._look_up(queue)
        return None if found is None else found.offset

    async def store_start_offset(self, queue: MessageQueue, offset: int) -> None:
        """Store a start offset if the queue has no offset. This member need not own the queue. Raises RmqdError."""
        async with self._alone(queue), self._firsts.hold_turn(queue):
            if await self._prove(queue) is None:
                await self._update(queue, offset)

    def begin_ownership(
        self, queue: MessageQueue, offset: int | None, watcher: OffsetWatcher | None = None, *, in_peace: bool = True
    ) -> None:
        RemoteBrokerOffsetStore.forget(self, queue)  # not `forget` of a subclass, which would discard more
        if offset is not None:
            self.committed[queue] = offset
            self._firsts.record_table(queue, offset)
        if watcher is not None:
            until, highest = self._clock.monotonic() + OFFSET_WATCH_SECONDS, offset or 0
            floor = highest if in_peace else 0
            self._watches[queue] = OffsetWatch(watcher, until, self._connection(queue), floor, highest)
        # A 4.9 broker's 0 may mean no offset, and it resets a topic only if all queues have offsets. So commit 0 soon.
        at = float("-inf") if offset == 0 else self._clock.monotonic()
        self._written[queue] = ConfirmedOffset(at, self._connection(queue))

    def forget(self, queue: MessageQueue) -> None:
        """Forget a released queue. Its commits that still wait for the queue's lock in this process are not sent."""
        self.committed.pop(queue, None)
        self.committed_at.pop(queue, None)
        self._written.pop(queue, None)
        self._watches.pop(queue, None)
        self._resets.discard(queue)
        self._epochs[queue] = self._epoch(queue) + 1

    async def commit(self, queue: MessageQueue, offset: int, *, downward: bool = False) -> None:
        """Commit an offset. A `downward` commit that fails is repeated in later rounds until a response confirms it."""
        if downward:
            self._epochs[queue] = self._epoch(queue) + 1
            self._resets.add(queue)
            if (watch := self._watches.get(queue)) is not None:
                watch.on_reset(offset)
        await self._send(queue, self._in_turn(queue, offset, self._epoch(queue)))

    async def commit_upward(
        self, queue: MessageQueue, offset: int, may_commit: Callable[[], bool] = lambda: True
    ) -> bool:
        """Read the stored offset, and commit if it is lower. Other commits of the queue wait until both are done."""
        return await self._send(queue, self._upward(queue, offset, self._epoch(queue), may_commit))

    async def _upward(self, queue: MessageQueue, offset: int, epoch: int, may_commit: Callable[[], bool]) -> bool:
        async with self._alone(queue) as look:
            asked_at, stored = look or (self._clock.monotonic(), await self._query(queue))
            known = self.committed.get(queue)
            if self._epoch(queue) != epoch:
                return False
            if stored is None:  # the group may have been deleted
                self._firsts.forget(queue)
            elif queue not in self._resets:
                if stored not in self._ours(queue):
                    if stored < (known or 0) and not self.may_be_lost(queue):
                        # An operator has reset the queue. The next owner's first pull will receive the reset.
                        log.warning("offset.set_back", queue=str(queue), offset=offset, stored=stored)
                        return True
                    if (watch := self._watches.get(queue)) is not None:
                        watch.watcher.count_handled_twice(max(0, min(offset, stored) - watch.highest_known))
                if stored >= offset:
                    self._unanswered.record_stored(queue, asked_at)
                    return True
            return await self._write(queue, offset, epoch, may_commit)

    async def commit_with_pull(
        self, queue: MessageQueue, offset: int, on: RemotingConnection, may_commit: Callable[[], bool]
    ) -> CarriedCommit | None:
        """Prepare a commit inside a pull if the rules in `pending_commits` allow it; otherwise return None."""
        epoch, watch = self._epoch(queue), self._watches.get(queue)
        if not self._may_carry(queue, offset, on):
            return None
        if watch is not None and (watch.on is not on or not watch.needs_no_check(self._clock.monotonic())):
            is_busy = self._client.offset_request(queue).locked()  # then the pull would wait for other offset requests
            async with self._turns[queue]:
                if is_busy or not await watch.may_pull_commit(self._clock, partial(self._look, queue, offset)):
                    return None
            if self._epoch(queue) != epoch or not self._may_carry(queue, offset, on):
                return None
        return self._pulls.record_sending(queue, offset, epoch, on) if may_commit() else None

    def _may_carry(self, queue: MessageQueue, offset: int, on: RemotingConnection) -> bool:
        return offset > self.committed.get(queue, offset) and self._is_at_master(queue, on) and self._is_free(queue)

    def _is_at_master(self, queue: MessageQueue, on: RemotingConnection) -> bool:
        """Return whether this connection leads to the queue's master and was used to confirm the stored offset."""
        master = self._client.routes.master(self._client.routes.endpoint(queue)) or ""
        return self._written[queue].on is on is self._client.remoting.connected(master)

    def _is_free(self, queue: MessageQueue) -> bool:
        """Return whether a commit in a pull can be sent now without a conflict with other commits, resets or owners."""
        turn = self._turns.get(queue)
        return (
            (turn is None or not turn.locked())
            and not self._unanswered.has(queue)
            and queue not in self._resets
            and self._firsts.has_table(queue)
            and self._clock.monotonic() + suspended_seconds() < self.carries_until
            and not is_logical_broker(queue.broker_name)  # the broker would store it for another queue
        )

    def _stored_by_pull(self, commit: PullCommit) -> None:
        """Called when the broker has stored a pull's commit, which may have replaced a reset or a later commit."""
        queue, known = commit.queue, self.committed.get(commit.queue)
        if commit.epoch == self._epoch(queue) and known is not None and commit.offset > known:
            self._unanswered.shorten_deadline(commit.unanswered, float("-inf"))  # it cannot replace a later commit
            self._note_stored(queue, commit.offset, commit.sent_at, commit.on)
        else:
            self._unanswered.shorten_deadline(commit.unanswered, 0.0)

    def recheck_stored_offsets(self) -> None:
        for watch in self._watches.values():
            watch.may_have_lost_queue = True

    async def wait_for_commits(self, queue: MessageQueue, offset: int, until: float) -> bool:
        return await self._unanswered.wait_for_end(queue, offset, until)

    def may_have_committed(self, queue: MessageQueue, stored: int) -> bool:
        return stored in self._ours(queue)

    def _ours(self, queue: MessageQueue) -> frozenset[int]:
        known = self.committed.get(queue)
        return self._unanswered.offsets(queue) | (frozenset() if known is None else {known})

    def may_be_lost(self, queue: MessageQueue) -> bool:
        written = self._written.get(queue)
        return written is not None and written.on is not self._connection(queue)

    async def persist(self, offsets: Mapping[MessageQueue, int]) -> bool:
        due = {queue: offset for queue, offset in offsets.items() if self.needs_commit(queue, offset)}
        commits = [Commit(queue, offset, self._epoch(queue)) for queue, offset in due.items()]
        unchecked = self._unchecked(q for q in offsets if q not in due and self.committed.get(q) == offsets[q])
        work = [self._commit_all(commits)] if commits else []
        return all(await asyncio.gather(*work, *map(self._commit_if_lost, unchecked)))

    async def check_stored(self, queues: Collection[MessageQueue]) -> None:
        await asyncio.gather(*map(self._commit_if_lost, self._unchecked(queues)))

    def _unchecked(self, queues: Iterable[MessageQueue]) -> Collection[list[Commit]]:
        """Return commits not confirmed for OFFSET_CHECK_SECONDS, in one list for each topic on a broker."""
        now, unchecked = self._clock.monotonic(), defaultdict[tuple[str, str], list[Commit]](list)
        for queue in queues:
            if now - self._written[queue].known_at >= OFFSET_CHECK_SECONDS:
                unchecked[queue[:2]].append(Commit(queue, self.committed[queue], self._epoch(queue)))
        return unchecked.values()

    async def _commit_all(self, commits: list[Commit]) -> bool:
        """Commit concurrently. Return whether all succeeded."""
        errors = await asyncio.gather(*(self._try_commit(*commit) for commit in commits))
        log_failed_commits(zip(commits, errors, strict=True), self._client.routes.endpoint)
        return not any(errors)

    async def _commit_if_lost(self, commits: list[Commit]) -> bool:
        """If the broker has lost these offsets of one topic, commit them again. Return whether the broker has them.

        A broker deletes a group's offsets of a topic together. So only one of them is queried.
        """
        if not (commits := [commit for commit in commits if self._epoch(commit.queue) == commit.epoch]):
            return True
        first, asked_at = commits[0], self._clock.monotonic()
        try:
            async with self._client.offset_request(first.queue):
                found = await self._look_up(first.queue)
        except RmqdError:  # the next round checks again
            return False
        if self._epoch(first.queue) != first.epoch:
            return True
        has_all = found is not None and found.is_certain and found.offset in self._ours(first.queue)
        written = ConfirmedOffset(asked_at if has_all else float("-inf"), self._written[first.queue].on)
        for queue, _, epoch in commits:
            if self._epoch(queue) == epoch and self._written[queue].known_at < asked_at:
                self._written[queue] = written
        if has_all:
            return True
        self._firsts.forget(first.queue)
        return await self._commit_all(commits)

    def _epoch(self, queue: MessageQueue) -> int:
        return self._epochs.get(queue, 0)

    @contextlib.asynccontextmanager
    async def _alone(self, queue: MessageQueue) -> AsyncIterator[OffsetRead | None]:
        """Take the queue's lock and wait for a commit in a pull. Yields the stored offset if this wait has read it."""
        async with self._turns[queue], self._client.offset_request(queue):
            yield await self._pulls.wait_for_end(queue, self._query)

    async def _send(self, queue: MessageQueue, work: Coroutine[None, None, bool]) -> bool:
        """Run a commit in a task that continues if the caller is cancelled. Return the commit's result."""
        task = asyncio.create_task(work, name=f"commit:{queue}")
        self._under_way.add(task)
        task.add_done_callback(self._sent)
        return await asyncio.shield(task)

    def _sent(self, task: asyncio.Task[bool]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # mark as retrieved for asyncio; the caller may have been cancelled

    async def _in_turn(self, queue: MessageQueue, offset: int, epoch: int) -> bool:
        async with self._alone(queue) as look:
            is_wanted = self._epoch(queue) == epoch and await self._look(queue, offset, look)
            is_wanted = is_wanted and self._is_news(queue, offset)
            return is_wanted and await self._write(queue, offset, epoch, lambda: True)

    async def _look(self, queue: MessageQueue, offset: int, look: OffsetRead | None = None) -> bool:
        """Return whether to commit. Checks the stored offset, `look` or a query, if others may have changed it."""
        if (watch := self._watches.get(queue)) is None:
            return True
        now = self._clock.monotonic()
        if watch.on is not self._connection(queue):
            watch.on_connection_lost()
        if watch.needs_no_check(now):
            return True
        stored = look.stored if look else await self._query(queue)
        if watch is not self._watches.get(queue) or not watch.may_commit(stored, offset, self._ours(queue), now):
            return False
        watch.on, watch.may_have_lost_queue = self._connection(queue), False
        return True

    async def _write(self, queue: MessageQueue, offset: int, epoch: int, may_commit: Callable[[], bool]) -> bool:
        """Commit an offset. The caller holds the queue's lock. Return False if a reset or release made it invalid."""
        async with self._firsts.hold_turn(queue):
            if self._epoch(queue) != epoch or not may_commit():
                return False
            asked_at = self._clock.monotonic()
            is_taken, on = await self._update(queue, offset)
        if self._epoch(queue) != epoch:
            return False
        if not is_taken:  # a reset waits for the next pull, so this commit was ignored
            self._unanswered.record_stored(queue, asked_at)  # else the last commit is repeated until its deadline
            if (watch := self._watches.get(queue)) is not None:
                watch.is_reset, watch.on = True, self._connection(queue)
            return True
        self._note_stored(queue, offset, asked_at, on)
        return True

    def _note_stored(self, queue: MessageQueue, offset: int, asked_at: float, on: RemotingConnection | None) -> None:
        if (watch := self._watches.get(queue)) is not None:
            watch.highest_known = max(watch.highest_known, offset)
        self._resets.discard(queue)
        self._unanswered.record_stored(queue, asked_at)
        self._written[queue] = ConfirmedOffset(self._clock.monotonic(), on)
        if self.committed.get(queue) != offset:
            self.committed[queue] = offset
            self.committed_at[queue] = self._clock.wall()

    async def _update(self, queue: MessageQueue, offset: int) -> tuple[bool, RemotingConnection | None]:
        """Send one commit. Return whether the broker stored it, and the connection, which may lead to a slave.

        A broker ignores commits while an operator's reset waits for the next pull. Raises RmqdError.
        """
        try:
            remoting, address = self._client.remoting, self._client.routes.address_for(queue)
            is_taken = await update_consumer_offset(
                remoting, address, self._group, queue, offset, timeout_seconds=OFFSET_TIMEOUT_SECONDS
            )
            return is_taken, remoting.connected(address)
        except RmqdError as error:
            self._unanswered.record_failed(queue, offset, error)
            self.failures += 1
            if isinstance(error, BrokerError) and error.stale_route:  # pulls notice a stale route up to 15 s later
                self._client.routes.refresh_soon([queue.topic])
            raise

    def is_check_due(self) -> bool:
        return any(self._clock.monotonic() - one.known_at >= OFFSET_CHECK_SECONDS for one in self._written.values())

    def needs_commit(self, queue: MessageQueue, offset: int) -> bool:
        watch = self._watches.get(queue)
        is_watched = watch is not None and not watch.needs_no_check(self._clock.monotonic())
        return (is_watched or self._is_news(queue, offset)) and not self._pulls.is_recent(queue)

    def _is_news(self, queue: MessageQueue, offset: int) -> bool:
        known = self.committed.get(queue)
        if known is None or offset > known or queue in self._resets:
            return True
        if offset < known:
            return False
        return self._written[queue].known_at == float("-inf") or self.may_be_lost(queue) or self._unanswered.has(queue)

    async def _try_commit(self, queue: MessageQueue, offset: int, epoch: int) -> RmqdError | None:
        try:
            await self._send(queue, self._in_turn(queue, offset, epoch))
        except RmqdError as error:
            return error
        return None

    def _connection(self, queue: MessageQueue) -> RemotingConnection | None:
        """Return the connection to the broker that stores the queue's offset; None if there is none."""
        address = self._client.routes.address(self._client.routes.endpoint(queue))
        return None if address is None else self._client.remoting.connected(address)
