"""The release of one queue: drain, last commit and unlock.

The order of the steps avoids duplicates at a hand-over between two rmqd members:

1. *Hand out nothing more.* Waiting messages stay unfinished, so the commit offset does not pass them.
2. *Drain*: wait until no batch of the queue is in flight, at most for the given time.
3. *Commit for the last time*, and wait for the response. Otherwise the next owner could read an older offset.
4. *Unlock.* Only now does the next owner, which waits for the lock, read the stored offset and start there.

The next owner waits only for a limited time. If the drain takes all of it, another member may own the queue, and no
commit is allowed any more: messages that finish later are handled twice. Therefore the messages that are finished when
the drain starts are committed at once, during the drain.

docs/proof/ownership.md explains the rules of commits and locks at a hand-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from rmqd.consumer.assigned.assignment import ReleaseSignal
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext, ReleasedOffset
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.errors import OffsetStoreError, QueueTakenError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import BrokerError
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

MIN_LAST_COMMIT_SECONDS: Final = 3.0  # minimum time to retry the last commits at a stop, unless an error is permanent
COMMIT_RETRY_SECONDS: Final = 0.2


class QueueRelease:
    """Releases one queue.

    If another member waits for the queue, nothing is committed after the deadline. If the whole group stops here
    (`ReleaseSignal.is_last`), the last commit is tried for some seconds more: no other member acquires the queue before
    it is unlocked.
    """

    def __init__(self, context: GroupContext, queue: MessageQueue, signal: ReleaseSignal) -> None:
        self._context = context
        self._queue = queue
        self._signal = signal

    async def run(self, loop: PullLoop | None, moved_to: Callable[[], int | None]) -> None:
        """Release the queue. `loop` is None if pulling has not begun. `moved_to` returns a reset's offset, or None."""
        context, signal, message_queue = self._context, self._signal, self._queue
        if loop is not None:
            process_queue = loop.process_queue
            # a pending reset, or a reset in a late response, must be applied before the next ownership begins
            loop.request.on_late_reset = partial(context.move, message_queue)
            if (reset_to := loop.request.reset_to) is not None:
                context.move(message_queue, reset_to)
            process_queue.start_release()
            context.service.submit(process_queue)  # a group ordered by key still handles messages below finished ones
            drained = await self._drain(loop)
            self._prolong()
            if moved_to() is None or not context.ownership.holds(message_queue):
                is_committed = (drained or signal.is_last) and await self._commit(process_queue.commit_offset())
                self._count_repeated(process_queue, is_committed=is_committed)
            process_queue.drop(signal.cause)  # before a reset is stored: a call that ends meanwhile must not replace it
            await self._commit_move(moved_to)
            if not drained and (signal.is_last or signal.forced.is_set()):  # a forced stop also ends the group
                return  # the group releases the queue when all its handlers have ended
        if (committed := context.store.committed.get(message_queue)) is not None:
            newest_ms = 0
            if loop is not None and committed <= loop.process_queue.next_offset:  # a PullConsumer may commit any offset
                newest_ms = loop.process_queue.newest_store_timestamp
            context.released_offsets[message_queue] = ReleasedOffset(committed, newest_ms)
        context.store.forget(message_queue)
        await context.ownership.release(message_queue)

    async def abandon(self, loop: PullLoop | None, moved_to: Callable[[], int | None]) -> None:
        """Commit the queue's finished messages after the group has failed. Messages in flight are delivered again."""
        if loop is None:
            return
        process_queue, signal = loop.process_queue, self._signal
        if not process_queue.is_releasing:
            process_queue.start_release()
        signal.is_last, signal.until = True, self._context.clock.monotonic() + MIN_LAST_COMMIT_SECONDS
        # Brokers report an operator's reset to one member only. So this member must commit it, or it would be lost.
        move = loop.request.reset_to if moved_to() is None else moved_to()
        is_committed = move is None and await self._commit(process_queue.commit_offset())
        self._count_repeated(process_queue, is_committed=is_committed)
        process_queue.drop(signal.cause)
        await self._commit_move(lambda: move)

    def _prolong(self) -> None:
        """Set the deadline of the last commit.

        At a hand-over, the deadline is the time until which this member certainly holds the lock. At a stop, it is at
        least MIN_LAST_COMMIT_SECONDS from now; at a forced stop, exactly MIN_LAST_COMMIT_SECONDS from now.
        """
        signal, now = self._signal, self._context.clock.monotonic()
        if not signal.is_last:
            signal.until = max(signal.until, now + self._context.ownership.start_grace_period(self._queue))
        elif signal.forced.is_set():
            signal.until = now + MIN_LAST_COMMIT_SECONDS
        else:
            signal.until = max(signal.until, now + MIN_LAST_COMMIT_SECONDS)

    def _count_repeated(self, process_queue: ProcessQueue, *, is_committed: bool) -> None:
        """Count the messages finished here above the stored offset, which the next owner handles again."""
        offset = process_queue.commit_offset()
        stored = offset if is_committed else self._context.store.committed.get(self._queue, offset)
        if repeated := process_queue.finished_above_commit_offset() + max(0, offset - stored):
            process_queue.stats.count_possible_duplicates(self._signal.cause, repeated)

    def _may_commit(self) -> bool:
        """Return whether to send a commit. Without the lock or after the deadline, another member may own the queue."""
        return self._context.ownership.holds(self._queue) and self._context.clock.monotonic() < self._signal.until

    async def _drain(self, loop: PullLoop) -> bool:
        """Wait until no batch of the queue is in flight. Return False after a timeout."""
        # After a reset, batches of an earlier cache may be in flight. Their results are ignored, but they must end
        # before the next owner starts.
        process_queues = (*loop.replaced_queues, loop.process_queue)
        if not any(one.is_busy for one in process_queues):
            return True
        commit = asyncio.create_task(self._try_once(loop.process_queue.commit_offset()))
        try:
            return await self._signal.drain(process_queues)
        finally:
            commit.cancel()  # ends only the wait for the response: the store completes a commit that was sent
            await asyncio.gather(commit, return_exceptions=True)

    async def _try_once(self, offset: int) -> None:
        if self._context.ownership.holds(self._queue):
            try:
                await self._context.store.commit_upward(self._queue, offset, self._may_commit)
            except RmqdError as error:
                self._failed(offset, error)

    async def _commit(self, offset: int) -> bool:
        """Commit the offset, unless the broker has a higher one. Return whether the commit or a higher one is stored.

        Retries until the deadline, or until the broker has the offset and no unanswered earlier commit of ours can
        replace it. Stops at a permanent error, and at any error if the offset is already committed.
        """
        store, queue = self._context.store, self._queue
        is_news = store.committed.get(queue) != offset
        failure: RmqdError | None = None
        try:
            async with self._context.clock.timeout(self._signal.until - self._context.clock.monotonic()):
                while self._may_commit():
                    try:
                        is_committed = await store.commit_upward(queue, offset, self._may_commit)
                        # True: an older commit has ended and may have replaced ours, so commit again
                        if not (is_committed and await store.wait_for_commits(queue, offset, self._signal.until)):
                            return is_committed
                    except RmqdError as error:
                        failure = error
                        if not is_news or not _may_pass(error):
                            break
                        await self._context.clock.sleep(COMMIT_RETRY_SECONDS)
        except TimeoutError:
            failure = failure or RmqdError("the broker did not respond in time")
        if failure is not None:
            self._failed(offset, failure)
        return False

    async def _commit_move(self, moved_to: Callable[[], int | None]) -> None:
        """Commit the offset of an operator's reset, so that the next owner starts at it. Retries until the deadline.

        The reset may also arrive while the last commit or this commit is in flight.
        """
        stored: int | None = None
        failure: RmqdError | None = None
        while (offset := moved_to()) is not None and offset != stored and self._may_commit():
            if failure is None:
                log.warning("offset.moved", queue=str(self._queue), offset=None, moved_to=offset)
            try:
                await self._context.store.commit(self._queue, offset, downward=True)
                stored, failure = offset, None
                self._context.refused_offsets.pop(self._queue, None)
            except RmqdError as error:
                failure = error
                if not _may_pass(error):
                    break
                await self._context.clock.sleep(COMMIT_RETRY_SECONDS)
        if failure is not None and offset is not None:
            self._failed(offset, failure)

    def _failed(self, offset: int, error: RmqdError) -> None:
        if not error.is_reported:
            log.warning("offset.commit_failed", queue=str(self._queue), offset=offset, error=str(error))


def _may_pass(error: RmqdError) -> bool:
    """Return whether the broker, or the group's own store, may accept the same request a moment later."""
    if isinstance(error, BrokerError):
        return error.retriable
    if isinstance(error, QueueTakenError):
        return False
    return isinstance(error, OffsetStoreError | RemotingError | RouteNotFoundError)
