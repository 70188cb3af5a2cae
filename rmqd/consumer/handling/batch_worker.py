"""One slot of a group: takes a batch, calls the handler, and settles the messages.

Every handler call is made here, except the calls that an operator requests (`HandlerSlots.call_in_background`) and a
canary's calls in shadow mode. An exception of a handler is a result. Every other exception ends the group.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sized
from typing import Any, TypeVar

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.handler_failures import CALL_EXPIRED
from rmqd.consumer.handling.handler_threads import UnusableHandlerError, check_result
from rmqd.consumer.handling.ready_queues import MakeBatch, ReadyQueues
from rmqd.consumer.handling.settlement import still_owns
from rmqd.consumer.services import ConsumeMessageService
from rmqd.consumer.stats.counters import QUICK_SECONDS
from rmqd.handler_api.batch import NO_LOCK_LEASE, Batch, ManualCommitBatch, OrderlyBatch
from rmqd.runtime.clock import Clock
from rmqd.wire.messages.message import Message, consume_start


def make_background_batch(options: ConsumerOptions, messages: list[Message]) -> Batch:
    """Return a batch of the group's batch class for a call outside the slots. All messages must be of one queue."""
    queue = messages[0].message_queue
    if options.consume_mode != "orderly" and not options.is_lite:
        return Batch(messages, queue)
    kind = OrderlyBatch if options.auto_commit else ManualCommitBatch
    return kind(NO_LOCK_LEASE, messages, queue)


async def exception_of_background_call(
    service: ConsumeMessageService, batch: Batch, ended: Callable[[], None] = lambda: None
) -> BaseException | None:
    """Call the handler outside the slots. Returns its exception or None. `ended` is called when the call has ended."""
    error: BaseException | None = None
    try:
        await service.call_in_background(batch, ended)
    except BaseException as raised:  # noqa: BLE001  every exception of a handler is its result
        error = raised
    batch.end()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)  # receives the cancellation if the handler cancelled this task and returned
    return error


TIME_SLICE_SECONDS = 0.005  # a handler that never awaits must not block heartbeats and pulls for longer

T = TypeVar("T")


HandlerCall = Callable[[Batch], Awaitable[object]]
SettleBatch = Callable[[ProcessQueue, Batch, BaseException | None], Coroutine[Any, Any, bool]]
# A worker's time at one queue: the queue; the function that makes its batches; the messages that other workers may take
# from the queue meanwhile (its pending messages, or none in an orderly group); and the function to call with the queue
# at the end, unless the worker was replaced.
WorkerTurn = tuple[ProcessQueue, MakeBatch, Sized, Callable[[ProcessQueue], None]]


class WorkerService(ABC):
    """The interface that a worker uses: the ready queues, and the settlement of batches."""

    clock: Clock
    ready_queues: ReadyQueues
    handler_name: str
    batch_size: int
    wall_offset: float
    """Seconds to add to monotonic time to get wall time."""
    settle_at_once: Callable[[ProcessQueue, Batch], bool | None]
    """Settles a batch whose handler returned, if that needs no waiting.

    Returns True if the queue must be suspended, False if it may continue, None if `settle` must be called.
    """
    settle: SettleBatch
    """Settles a batch. Returns whether its queue must be suspended."""

    @abstractmethod
    def begin_turn(self) -> WorkerTurn | None:
        """Take the first ready queue. Returns None if its messages must not be handed out now."""


class Worker:
    """One worker of a group. `process_queue` is the queue of its current or last turn."""

    call: HandlerCall
    """Calls the handler. The service sets this before `run`. A later change applies from the next turn."""

    def __init__(self, service: WorkerService, number: int, ready: Callable[[], Awaitable[None]] | None = None) -> None:
        """`ready` is awaited before each turn. This wait does not count as handler time."""
        self.number = number
        self.process_queue: ProcessQueue | None = None
        self.started = 0.0
        self.reported = -1.0  # `started` of the last call that was reported as expired
        self.expired = False  # the call is past its deadline: its result is CALL_EXPIRED, whatever it returns or raises
        self.replaced = False  # the call ignored its cancellation, or the service ends: its result is not used
        self.is_last_batch = False  # the current batch is the last of this turn
        self.batch: Batch | None = None  # the batch that the handler has; None between calls
        self.is_handler_called = True  # False if the handler gets no message of the batch
        self._service = service
        self._ready = ready
        self._task: asyncio.Task[None] | None = None
        self._run: list[Message] = []  # acknowledged messages of `process_queue` that `_finish_run` settles together
        self._run_began = 0.0
        self._will_finish = False  # whether the event loop calls `_finish_run` in its next turn

    async def run(self) -> None:
        """Take batches until the service ends this worker or replaces it.

        At a call's deadline the service sets `expired`. If the handler is asynchronous, the service also cancels this
        task; the call of a synchronous handler returns at once, without a result. If an asynchronous call continues
        anyway, the service sets `replaced` later. When the service ends, it sets both and cancels this task.

        The handler runs in this task too. It may cancel the task, at once or later, for instance by its own timeout.
        Such a cancellation can arrive at any `await` here. It may end the current call, but not the worker.
        """
        self._task = asyncio.current_task()
        consume_start.set(self._call_started)
        while not self.replaced:
            try:
                await self._serve()
            except asyncio.CancelledError:
                await withdraw_cancellations()

    def _call_started(self, message: Message) -> int | None:
        """Return when the call with this message began, in Unix milliseconds. Handler threads call this too."""
        batch, started = self.batch, self.started
        return None if batch is None or message not in batch else int((started + self._service.wall_offset) * 1000)

    async def _serve(self) -> None:
        """Take turns at the ready queues until this worker is replaced."""
        service = self._service
        ready_queues = service.ready_queues
        queues, queued = ready_queues.queues, ready_queues.not_to_add
        while not self.replaced:
            if ready_queues.excess_workers > 0:
                await ready_queues.wait_until_admitted()
                continue
            if not queues:
                await ready_queues.wait_for_work()
                continue
            if not queues[0].pending:  # all messages were taken, or the queue was released meanwhile
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
            self.is_last_batch = False
            try:
                await self._work_at(self.process_queue, make, for_others)
            finally:
                if self._run:
                    self._finish_run(self.started)
                if not self.replaced:
                    end_turn(self.process_queue)

    async def _work_at(self, process_queue: ProcessQueue, make: MakeBatch, for_others: Sized) -> None:
        """Hand the pending messages of a queue to the handler, batch by batch: the hot path.

        Every message of the group passes here. So values that stay the same are read before the loop. For a batch that
        is acknowledged as a whole, the loop calls as few Python functions as possible: do not add one.

        A call ends in one of four ways:

        - It returns. The batch is acknowledged, unless the handler decided something else (`batch.decided`) or the
          queue was dropped meanwhile.
        - It raises. The batch is settled by the exception, of any class.
        - It returns an awaitable or a generator that the handler forgot to run (HandlerNotAwaitedError), or the
          handler cannot be called at all (another UnusableHandlerError). No message is at fault, so this ends the
          group.
        - It is cancelled. The handler may have caught the CancelledError; otherwise the task receives it at its next
          `await`. The cancellation is withdrawn, so that it does not end the code after the call. If the call was
          `replaced`, its batch is settled elsewhere, and this worker touches neither the batch nor the queue. If it is
          `expired`, its result is CALL_EXPIRED. If the handler cancelled the task itself, the cancellation is ignored,
          and the return value or exception of the call counts.

        Quick calls with one message each follow each other without a wait. Their acknowledged messages are a *run*. All
        messages of a run are finished and counted together, before the turn waits or ends. If a call waits, this
        happens in the event loop's next turn.

        The turn ends when no message is pending, when the service halts it, when the queue must be suspended (an
        orderly queue after a failure), when the worker was replaced, or when the time slice is used up. Then the event
        loop runs other tasks first.
        """
        service, call, pending = self._service, self.call, process_queue.pending
        assert self._task is not None
        is_cancelled = self._task.cancelling
        clock, size, ready_queues = service.clock.monotonic, service.batch_size, service.ready_queues
        queues = ready_queues.queues
        message_queue, stats, finish = process_queue.public_queue, process_queue.stats, process_queue.finish
        run, is_single = self._run, size == 1
        self.started = started = clock()
        slice_end = started + TIME_SLICE_SECONDS
        while pending and not self.is_last_batch:
            messages = [pending.popleft()] if is_single else process_queue.take(size)
            if ready_queues.can_wake and (for_others or len(queues) > 1):
                ready_queues.wake()
            self.batch = batch = make(messages, message_queue)
            error: BaseException | None = None
            try:
                if (result := await call(batch)) is not None:
                    check_result(result, service.handler_name)
                    result = None  # free the result before the next call
            except UnusableHandlerError:
                raise  # no message is at fault: retries would dead-letter all of them
            except BaseException as raised:  # noqa: BLE001  every exception of a handler is its result
                error = raised
            self.batch = None
            if self.expired or is_cancelled():  # even if the call returned normally
                await withdraw_cancellations()
                if self.replaced:
                    return
                if self.expired:
                    self.expired = False
                    error = CALL_EXPIRED
            ended = clock()
            is_plain = error is None and batch.decided is None and not process_queue.dropped
            if is_plain and is_single and pending and ended <= slice_end and ended - started <= QUICK_SECONDS:
                if not run:
                    self._run_began = started
                    if not self._will_finish:
                        self._will_finish = True
                        asyncio.get_running_loop().call_soon(self._finish_waiting)
                batch.end()
                run.append(messages[0])
                self.started = started = ended
                continue
            if run:
                self._finish_run(started)
            if is_plain:
                age = ended + service.wall_offset - messages[0].store_timestamp * 0.001
                finish(messages)
                stats.acknowledged(messages, ended - started, age)
            else:
                is_resting = await self._settle(process_queue, batch, messages, error)
                error = None  # its traceback refers to this frame, and would keep the batch alive
                if is_resting:
                    return
                ended = clock()
            if ended > slice_end:
                await asyncio.sleep(0)
                return
            self.started = started = ended

    def _finish_waiting(self) -> None:
        """Called in the event loop's next turn. Finishes the run, because the current call waits for something."""
        self._will_finish = False
        if self._run:
            self._finish_run(self.started)

    def _finish_run(self, ended: float) -> None:
        """Finish and count the messages of the run. `ended` is the end of its last call, monotonic."""
        messages, process_queue = self._run.copy(), self.process_queue
        assert process_queue is not None
        self._run.clear()
        if still_owns(process_queue, messages):
            process_queue.finish(messages)
            now = ended + self._service.wall_offset
            process_queue.stats.count_acknowledged_singly(messages, ended - self._run_began, now)

    async def _settle(
        self, process_queue: ProcessQueue, batch: Batch, messages: list[Message], error: BaseException | None
    ) -> bool:
        """Settle a batch. Returns whether the queue must be suspended."""
        service = self._service
        if self.is_handler_called:
            now = service.clock.monotonic()
            age = now + service.wall_offset - messages[0].store_timestamp * 0.001
            process_queue.stats.count_call(messages, now - self.started, age)
        if error is None and (is_resting := service.settle_at_once(process_queue, batch)) is not None:
            return is_resting
        try:
            return await self.wait_unless_replaced(service.settle(process_queue, batch, error), "settle")
        except asyncio.CancelledError:
            return True

    async def wait_unless_replaced(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Wait for rmqd's own work between calls. Raises CancelledError if this worker was replaced.

        The work runs in a separate task, because the handler may have kept this task and cancel it during the work.
        """
        task = asyncio.create_task(work, name=name)
        while not task.done():
            if self.replaced:
                task.cancel()
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError:
                await withdraw_cancellations()
        return task.result()


async def withdraw_cancellations() -> None:
    """Withdraw all cancellations of this task.

    A cancelled task gets CancelledError at its next `await`. The `await` here receives it, because `uncancel` alone
    does not prevent it before Python 3.13.
    """
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.uncancel():
        pass
