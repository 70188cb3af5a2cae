"""One ownership of a queue, from the hand-over by its last owner to the hand-over to its next one."""

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

MOVE_SECONDS = 5.0  # for a queue that an operator moves while it goes from one member to the next


class AssignedQueue(Assignment):
    """Takes a queue over, pulls it, and gives it up when told to.

    `run` goes through these stages: wait until the former owner has let go (`Ownership.acquire`); read the stored
    offset and decide where to begin; pull (`PullLoop`, in a task of its own); give up (`GivingUp`).

    Three things cut the pull loop short, by the event `_cut`: the queue's lock was lost, an operator moved the queue,
    or the watchdog found that the loop hangs. The loop's task is cancelled then, and a new task goes on with the same
    loop object, hence with the same cache, once the cause is dealt with.
    """

    is_popped = False
    status: QueueStatus

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        super().__init__(context, message_queue)
        self.status = QueueStatus(context, message_queue)
        self._giving_up = GivingUp(context, message_queue, self._leaving)
        self._cut = asyncio.Event()  # the pull loop is to begin anew
        self._in_peace = True  # whether the former owner has let go, so that it commits nothing any more
        self._is_doubtful = False  # whether the queue's lock was lost, or may have been
        self._sought: int | None = None
        self._seek_ended = asyncio.Event()
        self._moved_to: int | None = None
        self._move_until = 0.0  # monotonic: later it has no effect

    @property
    def loop(self) -> PullLoop | None:
        """What pulls it; None until it was taken over."""
        return self.status.loop

    @property
    def _is_ours(self) -> bool:
        return self.loop is not None and self._context.ownership.holds(self.message_queue)

    def commit_offset(self) -> int | None:
        """The offset below which all is finished; None until the queue was taken over."""
        return None if self.loop is None else self.loop.process_queue.commit_offset()

    def set_back(self, offset: int) -> None:
        """Go where an operator's reset has set the stored offset, as no pull will tell of it."""
        self.move_to(offset)

    def overlapped(self, messages: int) -> None:
        """Count messages that another member has finished as well, for which we did not wait or which did not wait."""
        if messages:
            self._context.stats[self.message_queue.topic].may_repeat("handed_over", messages)

    def move_to(self, offset: int) -> bool:
        """Go on at `offset` at once, as an operator says: a pull that the broker holds is cut short.

        A queue that another member still has goes on there only if it is handed over within 5 s. After that the order
        is void, as the member that had the queue got the order too and has obeyed it.
        """
        self._moved_to = offset
        self._move_until = float("inf") if self._is_ours else self._context.clock.monotonic() + MOVE_SECONDS
        self._cut.set()
        return True

    async def seek(self, offset: int) -> None:
        """Continue at `offset`, as the program says that polls the queue. What is cached is dropped at once.

        Nothing is committed by that. Returns once the next pull begins there, or the queue is given up.
        """
        self._sought = offset
        self._seek_ended.clear()
        if self.loop is not None:
            self.loop.process_queue.drop("offset_moved")
        self._cut.set()
        await self._seek_ended.wait()

    def look_around(self) -> None:
        """Have the pull under way asked of another replica, where the one that has it is down."""
        if self.loop is not None:
            self.loop.request.look_elsewhere()

    def restart(self) -> None:
        """Have the queue pulled by a new loop, at the same place."""
        self._cut.set()

    async def run(self) -> None:
        """Own the queue until `leave`."""
        await self.consume()
        await self._giving_up.run(self.loop, lambda: self._moved_to)
        self._context.problems.end(("unread", self.message_queue))

    async def consume(self) -> None:
        """Take the queue over, and pull it until `leave`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                owning = tasks.create_task(self._own(), name=f"pull:{self.message_queue}")
                await self._leaving.begun.wait()
                owning.cancel()
        finally:
            self._seek_ended.set()

    async def abandon(self) -> None:
        """The group has failed, and nothing of it runs any more: commit what is finished."""
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
        """Decide where to begin, and store that before the first pull. Raises RmqdError."""
        try:
            return await self.find_start()
        except RmqdError as error:
            self.status.start_failure = error
            if isinstance(error, AccessRefusedError):  # where the queue ends, too, must be permitted here
                self._context.client.remoting.security.refusals.needed(error)
            raise

    async def find_start(self) -> Start:
        """The stored offset; otherwise where the group begins, which is stored. Raises RmqdError."""
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
        """Log and count it if the queue begins below what this process had committed before. It begins there anyway."""
        floor = self._context.floors.pop(self.message_queue, None)
        if floor is not None and offset < floor.committed:
            log.warning("offset.fell", queue=str(self.message_queue), offset=offset, committed_before=floor.committed)
            self._context.stats[self.message_queue.topic].falls["take_over"] += 1

    async def _pull(self, loop: PullLoop) -> None:
        """Run the pull loop, anew whenever it was cut short."""
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
        """Stop handing out and pulling: the queue's lock is lost, or in doubt, until it is granted again."""
        self._is_doubtful = True
        if self.loop is not None:
            self._context.service.halt(self.loop.process_queue)
        self._cut.set()

    async def _win_back(self, loop: PullLoop) -> None:
        """Wait for the queue's lock, and go on where we were, unless another member has consumed the queue meanwhile.

        The stored offset tells which: if it is one of our own commits, or less than ours on a broker that may have lost
        some, nobody else committed, and the cache is still right. Otherwise somebody else had the queue. Then the cache
        is dropped, and the queue is pulled from the stored offset, as after a take-over.
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
