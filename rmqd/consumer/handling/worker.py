"""One slot of a group's concurrency: takes a batch, calls the handler, sees to what becomes of the messages.

Every call of a handler is made here, but for those that an operator asks for (`HandlerSlots.call_apart`). A handler's
failure is a result; whatever else goes wrong ends the group.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sized
from typing import Any, Final, TypeVar

from rmqd.clock import Clock
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.line import Line
from rmqd.consumer.handling.threads import UnusableHandlerError, check_result
from rmqd.consumer.handling.verdict import EXPIRED
from rmqd.handler_api import Batch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message, consume_start

TIME_SLICE_SECONDS = 0.005  # a handler that never awaits must still let heartbeats and pulls through
BLOCKED_SECONDS: Final = 1.0

T = TypeVar("T")


# A worker's time at one queue: the queue; the function that makes its batches; the messages that other workers may take
# of it at the same time (the queue's pending messages, or none in an orderly group); and the function to call with the
# queue at the end, unless the worker was replaced.
Turn = tuple[ProcessQueue, Callable[[list[Message], MessageQueue], Batch], Sized, Callable[[ProcessQueue], None]]


class WorkerService(ABC):
    """What a worker asks of the service that it works for."""

    clock: Clock
    line: Line
    handler_name: str
    batch_size: int
    wall_offset: float
    """Seconds to add to monotonic time to get wall time."""

    @abstractmethod
    def begin_turn(self) -> Turn | None:
        """Take the first queue of the line, which has messages; None if they are not to be handed out now."""

    @abstractmethod
    def settle_at_once(self, process_queue: ProcessQueue, batch: Batch) -> bool | None:
        """Settle a batch whose handler returned, if that takes no waiting.

        Returns True if the queue has to rest, False if it may go on, None if `settle` has to be called.
        """

    @abstractmethod
    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """See to what becomes of a batch. Returns whether its queue has to rest: nothing is handed out for now."""

    @abstractmethod
    def took_long(self, started: float) -> None:
        """Called after a batch that took more than `BLOCKED_SECONDS`, settlement included, since `started` (monotonic).

        Warns if the call has blocked the event loop.
        """


class Worker:
    """Runs until its service ends or replaces it. `process_queue` is the queue of its last turn."""

    call: Callable[[Batch], Awaitable[object]]
    """The service sets it before `run`; another one holds from the next turn on."""

    def __init__(self, service: WorkerService, number: int, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        """`ready` is awaited before each turn: what it waits for is no time of the handler's."""
        self.number = number
        self.process_queue: ProcessQueue | None = None
        self.started = 0.0
        self.reported = -1.0  # `started` of the last call that was reported as past its deadline
        self.expired = False  # the call is past its deadline: its outcome is EXPIRED, whatever it returns or raises
        self.replaced = False  # nobody waits for the result: the call ignored its cancellation, or the service ends
        self.halted = False  # what the handler has now is the last batch of this turn
        self.batch: Batch | None = None  # what the handler has now
        self.is_called = True  # whether the handler has, or had, anything of the batch
        self._service = service
        self._ready = ready
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take batches until the service ends it, or replaces it.

        At the deadline of a call the service sets `expired`. Then it cancels this task if the handler is asynchronous;
        the call of a synchronous one returns at once, without a result. If an asynchronous call goes on in spite of
        that, the service sets `replaced` later. When the service ends, it sets both and cancels. The handler runs in
        this task, too, and may cancel it, at once or later, for instance by a timeout of its own. Such a cancellation
        may arrive in any `await` here. It ends the call that is under way then, if there is one, and nothing else.
        """
        self._task = asyncio.current_task()
        consume_start.set(self._call_started)
        while not self.replaced:
            try:
                await self._serve()
            except asyncio.CancelledError:
                await take_cancellations_back()

    def _call_started(self, message: Message) -> int | None:
        """When the call began that has the message, in Unix milliseconds. Handlers' threads ask, too."""
        batch, started = self.batch, self.started
        return None if batch is None or message not in batch else int((started + self._service.wall_offset) * 1000)

    async def _serve(self) -> None:
        """Take turns at the queues of the line."""
        service = self._service
        line = service.line
        queues, queued = line.queues, line.queued
        while not self.replaced:
            if line.surplus > 0:
                await line.park()
                continue
            if not queues:
                await line.rest()
                continue
            if not queues[0].pending:  # all taken, or given up meanwhile
                queued.discard(queues.popleft())
                continue
            if self._ready is not None:
                await self._ready()
                if not queues or not queues[0].pending:
                    continue
            turn = service.begin_turn()
            if turn is None:
                continue
            self.process_queue, make, for_others, end_turn = turn
            self.halted = False
            try:
                await self._work_at(self.process_queue, make, for_others)
            finally:
                if not self.replaced:
                    end_turn(self.process_queue)

    async def _work_at(
        self,
        process_queue: ProcessQueue,
        make: Callable[[list[Message], MessageQueue], Batch],
        for_others: Sized,
    ) -> None:
        """Hand the pending messages of a queue to the handler, batch by batch: the hot path.

        Every message of the group passes here. So what stays the same is read before the loop, and for a batch that is
        acknowledged as a whole the loop calls as few Python functions as it can: add none.

        A call ends in one of four ways:

        - It returns. The batch is acknowledged, unless the handler decided something else (`batch.decided`) or the
          queue was dropped meanwhile.
        - It raises. The batch is settled by the error, whatever class it has.
        - It returns an awaitable or a generator, which the handler forgot to run (HandlerNotAwaitedError), or the
          handler cannot be called at all (another UnusableHandlerError). That is no message's fault, so it
          ends the group.
        - It is cancelled. The handler may have caught the CancelledError, or the task gets it at its next `await`. The
          cancellation is taken back, so that it does not end what follows here. If the call is `replaced`, its batch
          is settled elsewhere, and neither the batch nor the queue is touched here. If it is `expired`, its outcome is
          EXPIRED. If the handler itself cancelled the task, the cancellation is ignored: the value or the exception of
          the call counts.

        The turn is over when nothing is pending, when the service halts it, when the queue is to rest (an orderly
        one, after a failure), when the worker was replaced, or when the time slice is used up; then the event loop
        runs other tasks first.
        """
        service, call, pending = self._service, self.call, process_queue.pending
        assert self._task is not None
        is_cancelled = self._task.cancelling
        clock, size, line, queues = service.clock.monotonic, service.batch_size, service.line, service.line.queues
        message_queue, stats, finish = process_queue.handed_as, process_queue.stats, process_queue.finish
        self.started = started = clock()
        slice_end = started + TIME_SLICE_SECONDS
        while pending and not self.halted:
            messages = [pending.popleft()] if size == 1 else process_queue.take(size)
            if line.can_wake and (for_others or len(queues) > 1):
                line.wake()
            self.batch = batch = make(messages, message_queue)
            error: BaseException | None = None
            try:
                if (result := await call(batch)) is not None:
                    check_result(result, service.handler_name)
                    result = None  # nobody wants it: it need not be kept until the next call
            except UnusableHandlerError:
                raise  # not the messages' fault: retries would dead-letter all of them
            except BaseException as raised:  # noqa: BLE001  whatever a handler raises is its result
                error = raised
            self.batch = None
            if self.expired or is_cancelled():  # the handler may have returned all the same
                await take_cancellations_back()
                if self.replaced:
                    return
                if self.expired:
                    self.expired = False
                    error = EXPIRED
            ended = clock()
            if error is None and batch.decided is None and not process_queue.dropped:
                age = ended + service.wall_offset - messages[0].store_timestamp * 0.001
                finish(messages)
                stats.acknowledged(messages, ended - started, age)
            else:
                is_resting = await self._settle(process_queue, batch, messages, error)
                error = None  # its traceback refers to this frame, and so would keep the batch alive
                if is_resting:
                    return
                ended = clock()
            if ended > slice_end:
                if ended - started > BLOCKED_SECONDS:
                    service.took_long(started)
                await asyncio.sleep(0)
                return
            self.started = started = ended

    async def _settle(
        self, process_queue: ProcessQueue, batch: Batch, messages: list[Message], error: BaseException | None
    ) -> bool:
        """Have the service settle a batch. Returns whether the queue has to rest."""
        service = self._service
        if self.is_called:
            now = service.clock.monotonic()
            age = now + service.wall_offset - messages[0].store_timestamp * 0.001
            process_queue.stats.handled_in(messages, now - self.started, age)
        if error is None and (is_resting := service.settle_at_once(process_queue, batch)) is not None:
            return is_resting
        try:
            return await self.undisturbed(service.settle(process_queue, batch, error), "settle")
        except asyncio.CancelledError:
            return True

    async def undisturbed(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Wait for work of ours between calls. Raises CancelledError if this worker was replaced.

        It has a task of its own: the handler may have kept this one, and cancel it while somebody is asked.
        """
        task = asyncio.create_task(work, name=name)
        while not task.done():
            if self.replaced:
                task.cancel()
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                await take_cancellations_back()
        return task.result()


async def take_cancellations_back() -> None:
    """Have this task go on as if nobody had cancelled it.

    If `cancel` was called and the CancelledError not raised yet, the next `await` raises it: the one here does.
    Before Python 3.13 `uncancel` alone does not prevent that.
    """
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.uncancel():
        pass
