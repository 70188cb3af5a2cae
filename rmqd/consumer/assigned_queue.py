"""One ownership of a queue, from the hand-over by its last owner to the hand-over to its next one."""

from __future__ import annotations

import asyncio
import random

import structlog

from rmqd.consumer.context import GroupContext
from rmqd.consumer.process_queue import ProcessQueue
from rmqd.consumer.pull_backoff import EXCEPTION_DELAY_SECONDS
from rmqd.consumer.pull_loop import PullLoop
from rmqd.consumer.queue_status import QueueStatus
from rmqd.consumer.snapshot import QueueSnapshot
from rmqd.consumer.start_offset import Start
from rmqd.errors import AccessRefusedError, RmqdError
from rmqd.wire.message import MessageQueue

log = structlog.get_logger(__name__)

MOVE_SECONDS = 5.0  # for a queue that an operator moves while it goes from one member to the next
COMMIT_SECONDS = 1.0  # for a commit under way to be answered, when the handlers are done


class AssignedQueue:
    """Takes a queue over, pulls it, and gives it up when told to.

    `run` ends when the queue was given up: what handlers had is finished and committed, or the time for it is over.
    """

    def __init__(self, context: GroupContext, queue: MessageQueue) -> None:
        self.message_queue = queue
        self.loop: PullLoop | None = None
        self._context = context
        self._leaving = asyncio.Event()
        self._drain_seconds = 0.0
        self._last = False  # the whole group ends: nobody has the queue before it is unlocked
        self._hurry = asyncio.Event()
        self._cut = asyncio.Event()  # the pull loop is to begin anew
        self._moved_to: int | None = None
        self._move_until = 0.0  # monotonic: later it has no effect
        self.failure: RmqdError | None = None  # of the last attempt to take the queue over
        self.status = QueueStatus(context, queue)

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to give the queue up."""
        return self._leaving.is_set()

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
        if not self.is_leaving:
            self._drain_seconds, self._last = drain_seconds, last
            self._leaving.set()

    def hurry(self) -> None:
        """Wait for handlers no longer."""
        self._hurry.set()

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
            await self._leaving.wait()
            owning.cancel()
        await self._give_up()

    async def _own(self) -> None:
        context, queue = self._context, self.message_queue
        await context.ownership.acquire(queue, self._lost)
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
                await asyncio.sleep(EXCEPTION_DELAY_SECONDS * random.uniform(0.75, 1.25))
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
            start = Start(floor, "committed")  # by this process: the broker has lost it
        else:
            start = await context.founding.start(queue, stored)
        context.store.take_over(queue, start.offset if start.is_stored else None)
        if not start.is_stored:
            await context.store.commit(queue, start.offset)
        return start

    def _check_floor(self, offset: int) -> None:
        """Tell if the queue begins below what this process had committed for it before: the broker's word holds."""
        floor = self._context.floors.pop(self.message_queue, None)
        if floor is not None and offset < floor:
            log.warning("offset.fell", queue=str(self.message_queue), offset=offset, committed_before=floor)
            self._context.stats[self.message_queue.topic].falls["take_over"] += 1

    async def _pull(self, loop: PullLoop) -> None:
        """Run the pull loop, anew whenever it was cut short."""
        while True:
            self._cut.clear()
            if not self._context.ownership.holds(self.message_queue):
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
        """The queue is not ours for now: nothing more is handed out or pulled before it is won back."""
        if self.loop is not None:
            self._context.service.halt(self.loop.process_queue)
        self._cut.set()

    async def _win_back(self, loop: PullLoop) -> None:
        """Go on where we were if nobody else consumed meanwhile, else where the broker says."""
        context, place = self._context, self.message_queue
        await context.ownership.acquire(place, self._lost)
        while True:
            try:
                stored = await context.store.read(place)
                break
            except RmqdError as error:
                if not error.is_told:
                    log.warning("queue.start_failed", queue=str(place), error=str(error))
                await asyncio.sleep(EXCEPTION_DELAY_SECONDS * random.uniform(0.75, 1.25))
        committed = context.store.committed.get(place)
        is_lost = context.store.may_be_lost(place)
        if stored is None or (committed is not None and (stored == committed or (is_lost and stored < committed))):
            context.service.submit(loop.process_queue)
            return
        log.warning("queue.consumed_elsewhere", queue=str(place), committed=committed, stored=stored)
        if committed is not None:
            context.floors[place] = committed
        self._check_floor(stored)
        loop.start_again(stored, "lock_lost")
        context.store.take_over(place, stored)

    async def _give_up(self) -> None:
        context, queue = self._context, self.process_queue
        cause = "stopped" if self._last else "handed_over"
        if queue is not None:
            queue.leave()
            drained = await self._drain(queue)
            if self._moved_to is not None and self._is_ours:
                await self._commit_move(self._moved_to)
            elif drained or self._last:
                await self._commit(queue)
            if not drained:
                queue.stats.may_repeat(cause, queue.finished_above())
            queue.drop(cause)
            if not drained and self._last:
                return  # released when the group's handlers have ended
        await context.ownership.release(self.message_queue)
        if (floor := context.store.committed.get(self.message_queue)) is not None:
            context.floors[self.message_queue] = floor
        context.store.forget(self.message_queue)

    async def _drain(self, queue: ProcessQueue) -> bool:
        """Wait until no handler has a batch of the queue; False if the time for it ran out."""
        loop = asyncio.get_running_loop()
        # a reset leaves batches of a former cache behind: they count no more, but the next owner must not meet them
        formers = self.loop.formers if self.loop is not None else []
        busy = [one for one in (*formers, queue) if one.in_flight]
        if not busy:
            return True
        waits = []
        for one in busy:
            one.idle = loop.create_future()
            waits.append(one.idle)
        idle = asyncio.gather(*waits)
        # should the time run out, nothing more may be committed: what is finished now must not be handled twice then
        commit, hurry = asyncio.create_task(self._commit(queue)), asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait((idle, hurry), timeout=self._drain_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not (idle.done() or hurry.done() or self._last):
                linger_seconds = self._context.ownership.linger(self.message_queue)
                await asyncio.wait((idle, hurry), timeout=linger_seconds, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((commit,), timeout=COMMIT_SECONDS)
        finally:
            for waiting in (commit, hurry, idle):
                waiting.cancel()
            await asyncio.gather(commit, hurry, idle, return_exceptions=True)
        if left := sum(one.in_flight for one in busy):
            log.warning("queue.not_drained", queue=str(self.message_queue), batches=left)
        return not left

    async def _commit_move(self, offset: int) -> None:
        """An operator moved the queue while it was being given up: its next owner is to begin there."""
        log.warning("offset.moved", queue=str(self.message_queue), offset=None, moved_to=offset)
        try:
            await self._context.store.commit(self.message_queue, offset, downward=True)
        except RmqdError as error:
            if not error.is_told:
                log.warning("offset.commit_failed", queue=str(self.message_queue), offset=offset, error=str(error))

    async def _commit(self, queue: ProcessQueue) -> None:
        """Commit with an answered request, and not below what the brokers have."""
        if not self._context.ownership.holds(self.message_queue):
            return
        offset = queue.commit_offset()
        try:
            await self._context.store.commit_upward(self.message_queue, offset)
        except RmqdError as error:
            if not error.is_told:
                log.warning("offset.commit_failed", queue=str(self.message_queue), offset=offset, error=str(error))
