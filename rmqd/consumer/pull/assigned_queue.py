"""One ownership of a queue, from the hand-over by its previous owner to the hand-over to its next one.

The order of the steps of a release avoids duplicates at a hand-over between two rmqd members:

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

from rmqd.consumer.assigned.assignment import Assignment, LazyEvent, ReleaseSignal
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext, ReleasedOffset
from rmqd.consumer.offsets.start_offsets import QueueStart
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.pull.pull_request import until_answered
from rmqd.consumer.pull.pull_status import QueueStatus
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import AccessRefusedError, BrokerError
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

LAST_COMMIT_SECONDS: Final = 3.0  # minimum time to retry the last commits at a stop, unless an error is permanent
AGAIN_SECONDS: Final = 0.2


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
        """Release the queue that `loop` pulls. `moved_to` returns the offset of an operator's reset, or None."""
        context, signal, message_queue = self._context, self._signal, self._queue
        if loop is not None:
            process_queue = loop.process_queue
            # a reset in the response to a last pull, or a pending one, applies to the next ownership
            loop.request.on_late_reset = partial(context.move, message_queue)
            if (reset_to := loop.request.reset_to) is not None:
                context.move(message_queue, reset_to)
            process_queue.start_release()
            context.service.submit(process_queue)  # a group by key still handles some of its messages
            drained = await self._drain(loop)
            self._prolong()
            if moved_to() is None or not context.ownership.holds(message_queue):
                is_committed = (drained or signal.is_last) and await self._commit(process_queue.commit_offset())
                self._count_repeated(process_queue, is_committed=is_committed)
            await self._commit_move(moved_to)
            process_queue.drop(signal.cause)
            if not drained and (signal.is_last or signal.forced.is_set()):  # a forced stop also ends the group
                return  # released when all handlers of the group have ended
        if (committed := context.store.committed.get(message_queue)) is not None:
            newest_ms = 0 if loop is None else loop.process_queue.newest_store_timestamp
            context.released_offsets[message_queue] = ReleasedOffset(committed, newest_ms)
        context.store.forget(message_queue)
        await context.ownership.release(message_queue)

    async def abandon(self, loop: PullLoop | None, moved_to: Callable[[], int | None]) -> None:
        """Commit the finished messages of a failed group. Messages in flight are delivered again."""
        if loop is None:
            return
        process_queue, signal = loop.process_queue, self._signal
        if not process_queue.is_releasing:
            process_queue.start_release()
        signal.is_last, signal.until = True, self._context.clock.monotonic() + LAST_COMMIT_SECONDS
        # The broker reported the operator's reset once, to this member, so no other member would apply it.
        move = loop.request.reset_to if moved_to() is None else moved_to()
        is_committed = move is None and await self._commit(process_queue.commit_offset())
        self._count_repeated(process_queue, is_committed=is_committed)
        await self._commit_move(lambda: move)
        process_queue.drop(signal.cause)

    def _prolong(self) -> None:
        """Set the deadline of the last commit.

        At a hand-over: as long as this member certainly holds the lock. At a stop: at least LAST_COMMIT_SECONDS from
        now; after a forced stop exactly that.
        """
        signal, now = self._signal, self._context.clock.monotonic()
        if not signal.is_last:
            signal.until = max(signal.until, now + self._context.ownership.start_grace_period(self._queue))
        elif signal.forced.is_set():
            signal.until = now + LAST_COMMIT_SECONDS
        else:
            signal.until = max(signal.until, now + LAST_COMMIT_SECONDS)

    def _count_repeated(self, process_queue: ProcessQueue, *, is_committed: bool) -> None:
        """Count the messages finished here above the stored offset, which the next owner handles again."""
        offset = process_queue.commit_offset()
        stored = offset if is_committed else self._context.store.committed.get(self._queue, offset)
        if repeated := process_queue.finished_above() + max(0, offset - stored):
            process_queue.stats.may_repeat(self._signal.cause, repeated)

    def _may_commit(self) -> bool:
        """Return whether a commit may be sent. Without the lock or after the deadline, it could harm the next owner."""
        return self._context.ownership.holds(self._queue) and self._context.clock.monotonic() < self._signal.until

    async def _drain(self, loop: PullLoop) -> bool:
        """Wait until no batch of the queue is in flight. Return False after a timeout."""
        # After a reset, batches of an earlier cache may be in flight. Their results are ignored, but they must end
        # before the next owner starts.
        process_queues = (*loop.replaced_queues, loop.process_queue)
        if not any(one.is_busy for one in process_queues):
            return True
        # Commit during the wait: after a timeout no commit is allowed, and the next owner would handle the finished
        # messages again.
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
        """Commit the offset, unless the broker has a higher one. Return whether the broker has it.

        Retries until the deadline, or until the broker has the offset and no unconfirmed earlier commit of ours can
        replace it. Gives up at a permanent error, and at any error if the stored offset would not change.
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
                        await self._context.clock.sleep(AGAIN_SECONDS)
        except TimeoutError:
            failure = failure or RmqdError("its broker did not respond in time")
        if failure is not None:
            self._failed(offset, failure)
        return False

    async def _commit_move(self, moved_to: Callable[[], int | None]) -> None:
        """Commit the offset of an operator's reset during the release, so that the next owner starts there.

        The reset may also arrive during the last commit, or during this one. Retries for as long as a last commit.
        """
        stored: int | None = None
        failure: RmqdError | None = None
        while (offset := moved_to()) is not None and offset != stored and self._may_commit():
            if failure is None:
                log.warning("offset.moved", queue=str(self._queue), offset=None, moved_to=offset)
            try:
                await self._context.store.commit(self._queue, offset, downward=True)
                stored, failure = offset, None
            except RmqdError as error:
                failure = error
                if not _may_pass(error):
                    break
                await self._context.clock.sleep(AGAIN_SECONDS)
        if failure is not None and offset is not None:
            self._failed(offset, failure)

    def _failed(self, offset: int, error: RmqdError) -> None:
        if not error.is_reported:
            log.warning("offset.commit_failed", queue=str(self._queue), offset=offset, error=str(error))


def _may_pass(error: RmqdError) -> bool:
    """Return whether the broker may accept the same request a moment later."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, RemotingError | RouteNotFoundError)


MOVE_SECONDS = 5.0  # time limit for a reset of a queue that changes its owner


class AssignedQueue(Assignment):
    """Acquires a queue, pulls it, and releases it on request.

    `run` has these stages: wait until the previous owner has released the queue (`Ownership.acquire`); read the stored
    offset and determine the start offset; pull (`PullLoop`); release (`QueueRelease`).

    Three events interrupt the pull loop, by `_cut`: the queue's lock was lost, an operator reset the queue, or the
    watchdog found that the loop hangs. The loop's `run` is then cancelled. Once the cause is handled, `run` continues
    with the same loop object, and so with the same cache.
    """

    is_popped = False
    status: QueueStatus

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        super().__init__(context, message_queue)
        context.idle.pop(message_queue, None)
        self.status = QueueStatus(context, message_queue)
        self._queue_release = QueueRelease(context, message_queue, self._release_signal)
        self._cut = LazyEvent()  # the pull loop must be restarted
        self._in_peace = True  # whether the previous owner has released the queue, so that it will not commit any more
        self._is_doubtful = False  # whether the queue's lock was lost, or may have been
        self._sought: tuple[int, Callable[[ProcessQueue], None]] | None = None
        self._seek_ended = LazyEvent()
        self._moved_to: int | None = None
        self._move_until = 0.0  # monotonic deadline of the reset

    @property
    def loop(self) -> PullLoop | None:
        return self.status.loop

    def commit_offset(self) -> int | None:
        return None if self.loop is None else self.loop.process_queue.commit_offset()

    def set_back(self, offset: int) -> None:
        """Continue at the stored offset that an operator's reset changed, because no pull will report it."""
        self.move_to(offset)

    def overlapped(self, messages: int) -> None:
        """Count messages that another member has finished as well, because one member did not wait for the other."""
        if messages:
            self._context.stats[self.message_queue.topic].may_repeat("handed_over", messages)

    def move_to(self, offset: int) -> bool:
        """Continue at `offset` at once after an operator's reset: a pull held at the broker is interrupted.

        If another member still owns the queue, the reset applies only if the queue is acquired within 5 s. Later it is
        void, because the previous owner received the same reset and has applied it.
        """
        self._moved_to = offset
        is_ours = self.loop is not None and self._context.ownership.holds(self.message_queue)
        self._move_until = float("inf") if is_ours else self._context.clock.monotonic() + MOVE_SECONDS
        self._cut.set()
        return True

    async def seek(self, offset: int, begin: Callable[[ProcessQueue], None]) -> None:
        """Continue at `offset`, as requested by the program that polls the queue. The cache is dropped at once.

        `begin` prepares the new cache before its first pull, which may carry a commit. Returns when that pull starts,
        or the queue is released.
        """
        self._sought = offset, begin
        self._seek_ended.clear()
        if self.loop is not None:
            self.loop.process_queue.drop("offset_moved")
        self._cut.set()
        await self._seek_ended.wait()

    def check_replica(self) -> None:
        if self.loop is not None:
            self.loop.request.try_another_replica()

    def restart(self) -> None:
        self._cut.set()

    async def run(self) -> None:
        await self.consume()
        await self._queue_release.run(self.loop, lambda: self._moved_to)
        self._context.problems.end(("unread", self.message_queue))

    async def consume(self) -> None:
        """Acquire the queue, and pull it until `release`."""
        try:
            await self._release_signal.begun.interrupt(self._own())
        finally:
            self._seek_ended.set()

    async def abandon(self) -> None:
        await self._queue_release.abandon(self.loop, lambda: self._moved_to)

    async def _own(self) -> None:
        context, queue = self._context, self.message_queue
        self._in_peace = await context.ownership.acquire(queue, self._lost, context.notice_seconds)
        self.status.is_in_line = True
        start = await until_answered(context, queue, self._start)
        self.status.start_failure = None
        log.info("queue.started", queue=str(queue), offset=start.offset, why=start.why)
        self.status.loop = loop = PullLoop(context, queue, start.offset)
        loop.apply_pauses()
        self._check_released_offset(start.offset)
        await self._pull(loop)

    async def _start(self) -> QueueStart:
        """Determine the start offset, and store it before the first pull. Raises RmqdError."""
        try:
            return await self.find_start()
        except RmqdError as error:
            self.status.start_failure = error
            if isinstance(error, AccessRefusedError):  # reading the queue's end requires a permission here
                self._context.client.remoting.security.refusals.needed(error)
            raise

    async def find_start(self) -> QueueStart:
        """Return the stored offset; otherwise store and return the start offset. Raises RmqdError."""
        context, queue = self._context, self.message_queue
        stored = await context.start_offsets.stored(queue)
        if stored is None and (released := context.released_offsets.get(queue)) is not None:
            start = await context.start_offsets.policy.of_lost_queue(queue, *released)
        else:
            start = await context.start_offsets.start(queue, stored)
        context.store.take_over(queue, start.offset if start.is_stored else None, self, in_peace=self._in_peace)
        if not start.is_stored:
            await context.store.commit(queue, start.offset)
        return start

    def _check_released_offset(self, offset: int) -> None:
        """Log and count a start below this process's earlier commit. The queue starts there anyway."""
        released = self._context.released_offsets.pop(self.message_queue, None)
        if released is not None and offset < released.committed:
            queue = str(self.message_queue)
            log.warning("offset.fell", queue=queue, offset=offset, committed_before=released.committed)
            self._context.stats[self.message_queue.topic].falls["take_over"] += 1

    async def _pull(self, loop: PullLoop) -> None:
        """Run the pull loop; restart it after each interruption."""
        while True:
            self._cut.clear()
            if self._is_doubtful or not self._context.ownership.holds(self.message_queue):
                await self._win_back(loop)
            if self._moved_to is not None:
                offset, self._moved_to = self._moved_to, None
                if self._context.clock.monotonic() < self._move_until:
                    await loop.move_to(offset)
            if self._sought is not None:
                (offset, begin), self._sought = self._sought, None
                loop.start_again(offset, "offset_moved")
                begin(loop.process_queue)
                self._seek_ended.set()
            await self._cut.interrupt(loop.run())

    def _lost(self) -> None:
        """Stop handing out and pulling until the queue's lock, which is lost or uncertain, is granted again."""
        self._is_doubtful = True
        self._context.idle.pop(self.message_queue, None)
        if self.loop is not None:
            self.loop.process_queue.awaits_lock = True
            self._context.service.halt(self.loop.process_queue)
        self._cut.set()

    async def _win_back(self, loop: PullLoop) -> None:
        """Wait for the queue's lock, and continue at the same offset unless another member has consumed the queue.

        The stored offset shows that. If it is one of our commits, or a lower one on a broker that may have lost some,
        no other member has committed, and the cache is still valid. Otherwise another member owned the queue. Then the
        cache is dropped, and the queue is pulled from the stored offset, as after an acquisition.
        """
        context, queue = self._context, self.message_queue
        await context.ownership.acquire(queue, self._lost)
        self._is_doubtful = False
        stored = await until_answered(context, queue, lambda: context.start_offsets.stored(queue))
        committed = context.store.committed.get(queue)
        may_be_less = committed is not None and context.store.may_be_lost(queue)
        if stored is None or context.store.wrote(queue, stored) or (may_be_less and stored < (committed or 0)):
            loop.process_queue.awaits_lock = False
            context.service.submit(loop.process_queue)
            return
        log.warning("queue.consumed_elsewhere", queue=str(queue), committed=committed, stored=stored)
        if committed is not None:
            context.released_offsets[queue] = ReleasedOffset(committed, 0)
        self._check_released_offset(stored)
        loop.start_again(stored, "lock_lost")
        context.store.take_over(queue, stored, self)
