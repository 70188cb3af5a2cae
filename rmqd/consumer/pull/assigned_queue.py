"""One ownership of a queue, from the hand-over by its previous owner to the hand-over to its next one."""

from __future__ import annotations

import asyncio

import structlog

from rmqd.broker_errors import AccessRefusedError
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import Floor, GroupContext
from rmqd.consumer.founding.start_offset import Start
from rmqd.consumer.pull.backoff import until_answered
from rmqd.consumer.pull.giving_up import GivingUp
from rmqd.consumer.pull.loop import PullLoop
from rmqd.consumer.pull.status import QueueStatus
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

MOVE_SECONDS = 5.0  # time limit for a reset of a queue that changes its owner


class AssignedQueue(Assignment):
    """Acquires a queue, pulls it, and releases it on request.

    `run` has these stages: wait until the previous owner has released the queue (`Ownership.acquire`); read the stored
    offset and determine the start offset; pull (`PullLoop`, in a separate task); release (`GivingUp`).

    Three events interrupt the pull loop, by `_cut`: the queue's lock was lost, an operator reset the queue, or the
    watchdog found that the loop hangs. The loop's task is then cancelled. Once the cause is handled, a new task
    continues with the same loop object, and so with the same cache.
    """

    is_popped = False
    status: QueueStatus

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        super().__init__(context, message_queue)
        self.status = QueueStatus(context, message_queue)
        self._giving_up = GivingUp(context, message_queue, self._leaving)
        self._cut = asyncio.Event()  # the pull loop must be restarted
        self._in_peace = True  # whether the previous owner has released the queue, so that it commits nothing any more
        self._is_doubtful = False  # whether the queue's lock was lost, or may have been
        self._sought: int | None = None
        self._seek_ended = asyncio.Event()
        self._moved_to: int | None = None
        self._move_until = 0.0  # monotonic deadline of the reset

    @property
    def loop(self) -> PullLoop | None:
        """The pull loop; None until the queue was acquired."""
        return self.status.loop

    @property
    def _is_ours(self) -> bool:
        return self.loop is not None and self._context.ownership.holds(self.message_queue)

    def commit_offset(self) -> int | None:
        """Return the offset below which all messages are finished; None until the queue was acquired."""
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
        self._move_until = float("inf") if self._is_ours else self._context.clock.monotonic() + MOVE_SECONDS
        self._cut.set()
        return True

    async def seek(self, offset: int) -> None:
        """Continue at `offset`, as requested by the program that polls the queue. The cache is dropped at once.

        Commits nothing. Returns when the next pull starts there, or the queue is released.
        """
        self._sought = offset
        self._seek_ended.clear()
        if self.loop is not None:
            self.loop.process_queue.drop("offset_moved")
        self._cut.set()
        await self._seek_ended.wait()

    def look_around(self) -> None:
        """Send the pull in flight to another replica if its replica is down."""
        if self.loop is not None:
            self.loop.request.look_elsewhere()

    def restart(self) -> None:
        """Restart the pull loop at the same offset."""
        self._cut.set()

    async def run(self) -> None:
        """Own the queue until `leave`."""
        await self.consume()
        await self._giving_up.run(self.loop, lambda: self._moved_to)
        self._context.problems.end(("unread", self.message_queue))

    async def consume(self) -> None:
        """Acquire the queue, and pull it until `leave`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                owning = tasks.create_task(self._own(), name=f"pull:{self.message_queue}")
                await self._leaving.begun.wait()
                owning.cancel()
        finally:
            self._seek_ended.set()

    async def abandon(self) -> None:
        """Called when the group has failed and none of its tasks run any more: commit the finished messages."""
        await self._giving_up.abandon(self.loop, lambda: self._moved_to)

    async def _own(self) -> None:
        context, queue = self._context, self.message_queue
        self._in_peace = await context.ownership.acquire(queue, self._lost, context.notice_seconds)
        start = await until_answered(context, queue, self._start)
        self.status.start_failure = None
        start.tell(queue)
        self.status.loop = loop = PullLoop(context, queue, start.offset)
        loop.apply_pauses()
        self._check_floor(start.offset)
        await self._pull(loop)

    async def _start(self) -> Start:
        """Determine the start offset, and store it before the first pull. Raises RmqdError."""
        try:
            return await self.find_start()
        except RmqdError as error:
            self.status.start_failure = error
            if isinstance(error, AccessRefusedError):  # reading the queue's end requires a permission here
                self._context.client.remoting.security.refusals.needed(error)
            raise

    async def find_start(self) -> Start:
        """Return the stored offset; otherwise store and return the start offset. Raises RmqdError."""
        context, queue = self._context, self.message_queue
        stored = await context.founding.stored(queue)
        if stored is None and (floor := context.floors.get(queue)) is not None:
            start = await context.founding.policy.of_lost_queue(queue, *floor)
        else:
            start = await context.founding.start(queue, stored)
        context.store.take_over(queue, start.offset if start.is_stored else None, self, in_peace=self._in_peace)
        if not start.is_stored:
            await context.store.commit(queue, start.offset)
        return start

    def _check_floor(self, offset: int) -> None:
        """Log and count it if the queue starts below this process's earlier commit. It starts there anyway."""
        floor = self._context.floors.pop(self.message_queue, None)
        if floor is not None and offset < floor.committed:
            log.warning("offset.fell", queue=str(self.message_queue), offset=offset, committed_before=floor.committed)
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
                loop.start_again(self._sought, "offset_moved")
                self._sought = None
                self._seek_ended.set()
            async with asyncio.TaskGroup() as tasks:
                pulling = tasks.create_task(loop.run(), name=f"pull loop:{self.message_queue}")
                await self._cut.wait()
                pulling.cancel()

    def _lost(self) -> None:
        """Stop handing out and pulling until the queue's lock, which is lost or uncertain, is granted again."""
        self._is_doubtful = True
        if self.loop is not None:
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
        stored = await until_answered(context, queue, lambda: context.founding.stored(queue))
        committed = context.store.committed.get(queue)
        may_be_less = committed is not None and context.store.may_be_lost(queue)
        if stored is None or context.store.wrote(queue, stored) or (may_be_less and stored < (committed or 0)):
            context.service.submit(loop.process_queue)
            return
        log.warning("queue.consumed_elsewhere", queue=str(queue), committed=committed, stored=stored)
        if committed is not None:
            context.floors[queue] = Floor(committed, 0)
        self._check_floor(stored)
        loop.start_again(stored, "lock_lost")
        context.store.take_over(queue, stored, self)
