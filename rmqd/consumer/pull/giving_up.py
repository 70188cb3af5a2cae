"""The end of one ownership of a queue: handlers finish what they have, the last commit is answered, the lock is freed.

Rules of commits and locks at a hand-over are in docs/ownership.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import Floor, GroupContext
from rmqd.consumer.pull.loop import PullLoop
from rmqd.errors import BrokerError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

LAST_COMMIT_SECONDS: Final = 3.0  # a stop tries at least so long to have its last commits taken
AGAIN_SECONDS: Final = 0.2


class GivingUp:
    """Gives one queue up once `begin` is called, within the time that `begin` was given."""

    def __init__(self, context: GroupContext, queue: MessageQueue) -> None:
        self.begun = asyncio.Event()
        self.last = False  # the whole group ends: nobody has the queue before it is unlocked
        self._context = context
        self._queue = queue
        self._hurry = asyncio.Event()
        self._until = float("inf")  # by the loop's clock; a queue that somebody waits for is committed no later

    def begin(self, drain_seconds: float, *, last: bool) -> None:
        """Give the queue up; handlers get `drain_seconds` to finish what they have."""
        if not self.begun.is_set():
            self._until, self.last = asyncio.get_running_loop().time() + drain_seconds, last
            self.begun.set()

    def hurry(self) -> None:
        """Stop waiting for handlers."""
        self._hurry.set()

    async def run(self, loop: PullLoop | None, moved_to: Callable[[], int | None]) -> None:
        """Give up the queue that `loop` pulls. `moved_to` returns the offset that an operator moved it to meanwhile."""
        context, place = self._context, self._queue
        if loop is not None:
            cause, queue = "stopped" if self.last else "handed_over", loop.process_queue
            loop.request.successor = partial(context.move, place)
            queue.leave()
            drained = await self._drain(loop)
            self._prolong()
            if moved_to() is None or not context.ownership.holds(place):
                is_committed = (drained or self.last) and await self._commit(queue.commit_offset())
                self._count_repeated(queue, cause, is_committed=is_committed)
            await self._commit_move(moved_to)
            queue.drop(cause)
            if not drained and self.last:
                return  # released when the group's handlers have ended
        if (floor := context.store.committed.get(place)) is not None:
            context.floors[place] = Floor(floor, loop.process_queue.newest_store_timestamp if loop is not None else 0)
        context.store.forget(place)
        await context.ownership.release(place)

    async def abandon(self, loop: PullLoop | None) -> None:
        """Commit the finished messages of a group that fails. Messages that handlers still have are delivered again."""
        if loop is None:
            return
        queue = loop.process_queue
        if not queue.leaving:
            queue.leave()
        self.last, self._until = True, asyncio.get_running_loop().time() + LAST_COMMIT_SECONDS
        is_committed = await self._commit(queue.commit_offset())
        self._count_repeated(queue, "stopped", is_committed=is_committed)
        queue.drop("stopped")

    def _prolong(self) -> None:
        """Give the last commit more time than handlers had: at a stop, and while this member has the queue's lock."""
        now = asyncio.get_running_loop().time()
        if not self.last:
            self._until = max(self._until, now + self._context.ownership.linger(self._queue))
        elif self._hurry.is_set():
            self._until = now + LAST_COMMIT_SECONDS
        else:
            self._until = max(self._until, now + LAST_COMMIT_SECONDS)

    def _count_repeated(self, queue: ProcessQueue, cause: str, *, is_committed: bool) -> None:
        """Count messages that are finished here above the stored offset: the next owner handles them again."""
        offset = queue.commit_offset()
        stored = offset if is_committed else self._context.store.committed.get(self._queue, offset)
        if repeated := queue.finished_above() + max(0, offset - stored):
            queue.stats.may_repeat(cause, repeated)

    def _may_commit(self) -> bool:
        """Whether a commit may still be sent. After the time, or without the lock, another member has the queue."""
        return self._context.ownership.holds(self._queue) and asyncio.get_running_loop().time() < self._until

    async def _drain(self, loop: PullLoop) -> bool:
        """Wait until no handler has a batch of the queue; False if the time for it ran out."""
        # a reset leaves batches of the former cache with handlers: their results are ignored, but they must end before
        # the next owner begins
        queue = loop.process_queue
        busy = [one for one in (*loop.formers, queue) if one.in_flight]
        if not busy:
            return True
        idle = asyncio.gather(*(one.wait_idle() for one in busy))
        # should the time run out, nothing more may be committed: what is finished now must not be handled twice then
        commit = asyncio.create_task(self._try_once(queue.commit_offset()))
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await self._wait(idle, hurry)
            if not (idle.done() or hurry.done() or self.last):
                self._until += self._context.ownership.linger(self._queue)
                await self._wait(idle, hurry)
        finally:
            for waiting in (commit, hurry, idle):  # of the commit only who waits for its answer
                waiting.cancel()
            await asyncio.gather(commit, hurry, idle, return_exceptions=True)
        if left := sum(one.in_flight for one in busy):
            log.warning("queue.not_drained", queue=str(self._queue), batches=left)
        return not left

    async def _wait(self, *either: asyncio.Future[Any]) -> None:
        left = self._until - asyncio.get_running_loop().time()
        await asyncio.wait(either, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)

    async def _try_once(self, offset: int) -> None:
        if self._context.ownership.holds(self._queue):
            try:
                await self._context.store.commit_upward(self._queue, offset, self._may_commit)
            except RmqdError as error:
                self._failed(offset, error)

    async def _commit(self, offset: int) -> bool:
        """Store the offset, unless the broker has a higher one. Try until that is done or the time is over.

        The last word is what is stored once no earlier commit of ours can come any more.
        """
        store, place = self._context.store, self._queue
        is_news = store.committed.get(place) != offset
        failure: RmqdError | None = None
        try:
            async with asyncio.timeout_at(self._until):
                while self._may_commit():
                    try:
                        is_committed = await store.commit_upward(place, offset, self._may_commit)
                        if not (is_committed and await store.settled(place, offset, self._until)):
                            return is_committed
                    except RmqdError as error:
                        failure = error
                        if not is_news or not _may_pass(error):
                            break
                        await asyncio.sleep(AGAIN_SECONDS)
        except TimeoutError:
            failure = failure or RmqdError("its broker did not answer in time")
        if failure is not None:
            self._failed(offset, failure)
        return False

    async def _commit_move(self, moved_to: Callable[[], int | None]) -> None:
        """Store where an operator moved the queue to while it was being given up, its last commit included.

        Its next owner is to begin there. It is tried as long as a last commit is.
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
                await asyncio.sleep(AGAIN_SECONDS)
        if failure is not None and offset is not None:
            self._failed(offset, failure)

    def _failed(self, offset: int, error: RmqdError) -> None:
        if not error.is_told:
            log.warning("offset.commit_failed", queue=str(self._queue), offset=offset, error=str(error))


def _may_pass(error: RmqdError) -> bool:
    """Whether the broker may accept the same request a moment later."""
    if isinstance(error, BrokerError):
        return error.retriable
    return isinstance(error, RemotingError | RouteNotFoundError)
