"""One slot of a group's concurrency: takes a batch, calls the handler, sees to what becomes of the messages.

The only place that calls a handler. A handler's failure is a result here; whatever else goes wrong ends the group.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sized
from typing import TYPE_CHECKING

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.settlement import EXPIRED
from rmqd.consumer.handling.threads import HandlerNotAwaitedError, check_result
from rmqd.handler import Batch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

if TYPE_CHECKING:
    from rmqd.consumer.handling.slots import HandlerSlots

log = structlog.get_logger(__name__)

TIME_SLICE_SECONDS = 0.005  # a handler that never awaits must still let heartbeats and pulls through
BLOCKED_SECONDS = 1.0


class Worker:
    """Runs until its service ends or replaces it. While a handler has a batch, `queue` is where it came from."""

    def __init__(self, service: HandlerSlots, call: Callable[[Batch], Awaitable[object]], number: int) -> None:
        self.number = number
        self.queue: ProcessQueue | None = None
        self.started = 0.0
        self.expired = False  # the call is past its deadline: what it returns or raises is not its result any more
        self.replaced = False  # nobody waits for the result: the call ignored its cancellation, or the service ends
        self.halted = False  # what the handler has now is the last batch of this turn
        self.batch: Batch | None = None  # what the handler has now
        self._service = service
        self._call = call
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take batches until the service ends it, or replaces it.

        Only the service may cancel this task, and sets `replaced` before. But the handler runs in this task, too: it
        may cancel it, at once or later, by a timeout of its own making for instance. Such a cancellation may arrive
        in any `await` here. It ends nothing but the call that is under way then, if one is.
        """
        self._task = asyncio.current_task()
        while not self.replaced:
            try:
                await self._serve()
            except asyncio.CancelledError:
                await self._take_cancellations_back()

    async def _serve(self) -> None:
        """Take batches for ever; a queue stays in the line while it has messages, for other workers too."""
        service = self._service
        line, queued = service.line, service.queued
        while True:
            if not line:
                await service.rest()
                continue
            queue = line[0]
            if not queue.pending:  # all taken, or given up meanwhile
                queued.discard(line.popleft())
                continue
            line.rotate(-1)  # whoever comes next begins with the next queue
            self.queue = queue
            self.halted = False
            queue.begin_turn()
            try:
                await self._work_at(queue, Batch, queue.pending)
            finally:
                if not self.replaced:
                    queue.end_turn()
            if self.replaced:
                return

    async def _work_at(
        self, queue: ProcessQueue, make: Callable[[list[Message], MessageQueue], Batch], for_others: Sized
    ) -> None:
        """Handle batches of one queue until it has none left or the time slice is over: the hot path.

        `for_others` is what other workers may take meanwhile, beside the other queues in the line.
        """
        service, call, pending = self._service, self._call, queue.pending
        assert self._task is not None
        is_cancelled = self._task.cancelling
        clock, size, line = service.clock.monotonic, service.batch_size, service.line
        message_queue, stats, finish = queue.handed_as, queue.stats, queue.finish
        self.started = started = clock()
        slice_end = started + TIME_SLICE_SECONDS
        while pending and not self.halted:
            messages = [pending.popleft()] if size == 1 else queue.take(size)
            if service.can_wake and (for_others or len(line) > 1):
                service.wake()
            self.batch = batch = make(messages, message_queue)
            error: BaseException | None = None
            try:
                if (result := await call(batch)) is not None:
                    check_result(result, service.handler_name)
                    result = None  # nobody wants it: it need not be kept until the next call
            except HandlerNotAwaitedError:
                raise  # no message's fault: trying them again would bring all of them to the dead letters
            except BaseException as raised:  # noqa: BLE001  whatever a handler raises is its result
                error = raised
            self.batch = None
            if self.expired or is_cancelled():  # the handler may have returned all the same
                await self._take_cancellations_back()
                if self.replaced:
                    return
                if self.expired:
                    self.expired = False
                    error = EXPIRED
            ended = clock()
            if error is None and batch.decided is None and not queue.dropped:
                age = ended + service.wall_offset - messages[0].store_timestamp * 0.001
                finish(messages)
                stats.acknowledged(messages, ended - started, age)
            else:
                is_resting = await self._settle(queue, batch, messages, error)
                error = None  # its traceback leads to this frame: without this only the garbage collector frees them
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
        self, queue: ProcessQueue, batch: Batch, messages: list[Message], error: BaseException | None
    ) -> bool:
        """Whether nothing more of the queue is to be handed out for now."""
        now = self._service.clock.monotonic()
        age = now + self._service.wall_offset - messages[0].store_timestamp * 0.001
        queue.stats.handled_in(messages, now - self.started, age)
        if error is None and (is_resting := self._service.settle_at_once(queue, batch)) is not None:
            return is_resting
        # in a task of its own: a handler may have kept this one, and cancel it while the broker is asked
        settling = asyncio.create_task(self._service.settle(queue, batch, error), name="settle")
        while not settling.done():
            if self.replaced:
                settling.cancel()
            try:
                await asyncio.wait((settling,))
            except asyncio.CancelledError:
                await self._take_cancellations_back()
        return settling.cancelled() or settling.result()

    async def _take_cancellations_back(self) -> None:
        """Have this task go on as if nobody had cancelled it.

        Where it has not heard of it yet, the next `await` raises; before Python 3.13 `uncancel` does not prevent that.
        """
        assert self._task is not None
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        while self._task.uncancel():
            pass
