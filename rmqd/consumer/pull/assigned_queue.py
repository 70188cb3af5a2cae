"""One ownership of a queue, from the hand-over by its last owner to the hand-over to its next one."""

from __future__ import annotations

import asyncio

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import Floor, GroupContext
from rmqd.consumer.founding.start_offset import Start
from rmqd.consumer.pull.backoff import after_error
from rmqd.consumer.pull.giving_up import GivingUp
from rmqd.consumer.pull.loop import PullLoop
from rmqd.consumer.pull.status import QueueStatus
from rmqd.consumer.stats.snapshot import QueueSnapshot
from rmqd.errors import AccessRefusedError, RmqdError
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

MOVE_SECONDS = 5.0  # for a queue that an operator moves while it goes from one member to the next


class AssignedQueue:
    """Takes a queue over, pulls it, and gives it up when told to.

    `run` ends when the queue was given up: what handlers had is finished and committed, or the time for it is over.
    """

    def __init__(self, context: GroupContext, queue: MessageQueue) -> None:
        self.message_queue = queue
        self.loop: PullLoop | None = None
        self._context = context
        self._giving_up = GivingUp(context, queue)
        self._cut = asyncio.Event()  # the pull loop is to begin anew
        self._in_peace = True  # no former owner may still commit
        self._is_doubtful = False  # its lock was lost, or may have been
        self._moved_to: int | None = None
        self._move_until = 0.0  # monotonic: later it has no effect
        self.failure: RmqdError | None = None  # of the last attempt to take the queue over
        self.status = QueueStatus(context, queue)

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to give the queue up."""
        return self._giving_up.begun.is_set()

    @property
    def _is_ours(self) -> bool:
        return self.loop is not None and self._context.ownership.holds(self.message_queue)

    @property
    def process_queue(self) -> ProcessQueue | None:
        """The cache; None until the queue was taken over."""
        return None if self.loop is None else self.loop.process_queue

    @property
    def is_paused(self) -> bool:
        """Whether an operator paused it."""
        return self._context.pauses.hold(self.message_queue)

    def snapshot(self) -> QueueSnapshot | None:
        """What is known of the queue; None until it was taken over, unless that takes too long."""
        return self.status.snapshot(self.loop)

    def apply_pauses(self) -> None:
        """Take over what an operator paused or resumed."""
        if self.loop is not None:
            self.loop.apply_pauses()

    def leave(self, drain_seconds: float, *, last: bool = False) -> None:
        """Give the queue up; handlers get `drain_seconds` to finish what they have."""
        self._giving_up.begin(drain_seconds, last=last)

    def hurry(self) -> None:
        """Wait for handlers no longer."""
        self._giving_up.hurry()

    def set_back(self, offset: int) -> None:
        """An operator's reset, which no pull will tell of."""
        self.move_to(offset)

    def overlapped(self, messages: int) -> None:
        """Another member, which was not waited for or did not wait, has finished what was finished here too."""
        if messages:
            self._context.stats[self.message_queue.topic].may_repeat("handed_over", messages)

    def move_to(self, offset: int) -> None:
        """Go on at `offset` at once, as an operator says: a pull that the broker holds is cut short.

        One that is still waited for goes on there if it comes within 5 s: who has it now has heard the operator too.
        """
        self._moved_to = offset
        self._move_until = float("inf") if self._is_ours else self._context.clock.monotonic() + MOVE_SECONDS
        self._cut.set()

    def restart(self) -> None:
        """Have the queue pulled by a new loop, at the same place."""
        self._cut.set()

    async def run(self) -> None:
        """Own the queue until `leave`."""
        async with asyncio.TaskGroup() as tasks:
            owning = tasks.create_task(self._own(), name=f"pull:{self.message_queue}")
            await self._giving_up.begun.wait()
            owning.cancel()
        await self._giving_up.run(self.loop, lambda: self._moved_to)

    async def abandon(self) -> None:
        """The group has failed, and nothing of it runs any more: commit what is finished."""
        await self._giving_up.abandon(self.loop)

    async def _own(self) -> None:
        context, queue = self._context, self.message_queue
        self._in_peace = await context.ownership.acquire(queue, self._lost, context.notice_seconds)
        while True:
            try:
                start = await self._start()
                break
            except RmqdError as error:
                self.failure = error
                if isinstance(error, AccessRefusedError):  # where the queue ends, too, must be permitted here
                    context.client.remoting.security.refusals.needed(error)
                elif not error.is_told:
                    log.warning("queue.start_failed", queue=str(queue), error=str(error))
                context.client.routes.refresh_soon([queue.topic])
                await asyncio.sleep(after_error())
        self.failure = None
        start.tell(queue)
        self.loop = PullLoop(context, queue, start.offset)
        self.loop.apply_pauses()
        self._check_floor(start.offset)
        await self._pull(self.loop)

    async def _start(self) -> Start:
        """Where to begin, which is stored before the first pull. Raises RmqdError."""
        context, queue = self._context, self.message_queue
        stored = await context.store.read(queue)
        if stored is None and (floor := context.floors.get(queue)) is not None:
            start = await context.founding.policy.of_lost_queue(queue, *floor)
        else:
            start = await context.founding.start(queue, stored)
        context.store.take_over(queue, start.offset if start.is_stored else None, self, in_peace=self._in_peace)
        if not start.is_stored:
            await context.store.commit(queue, start.offset)
        return start

    def _check_floor(self, offset: int) -> None:
        """Tell if the queue begins below what this process had committed for it before: the broker's word holds."""
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
            async with asyncio.TaskGroup() as tasks:
                pulling = tasks.create_task(loop.run(), name=f"pull loop:{self.message_queue}")
                await self._cut.wait()
                pulling.cancel()

    def _lost(self) -> None:
        """The queue may not be ours for now: nothing more is handed out or pulled before it is won back."""
        self._is_doubtful = True
        if self.loop is not None:
            self._context.service.halt(self.loop.process_queue)
        self._cut.set()

    async def _win_back(self, loop: PullLoop) -> None:
        """Go on where we were if nobody else consumed meanwhile, else where the broker says."""
        context, place = self._context, self.message_queue
        await context.ownership.acquire(place, self._lost)
        self._is_doubtful = False
        while True:
            try:
                stored = await context.store.read(place)
                break
            except RmqdError as error:
                if not error.is_told:
                    log.warning("queue.start_failed", queue=str(place), error=str(error))
                await asyncio.sleep(after_error())
        committed = context.store.committed.get(place)
        may_be_less = committed is not None and context.store.may_be_lost(place)
        if stored is None or context.store.wrote(place, stored) or (may_be_less and stored < (committed or 0)):
            context.service.submit(loop.process_queue)
            return
        log.warning("queue.consumed_elsewhere", queue=str(place), committed=committed, stored=stored)
        if committed is not None:
            context.floors[place] = Floor(committed, 0)
        self._check_floor(stored)
        loop.start_again(stored, "lock_lost")
        context.store.take_over(place, stored, self)
