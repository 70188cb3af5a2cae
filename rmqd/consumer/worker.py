"""One slot of a group's concurrency: takes a batch, calls the handler, sees to what becomes of the messages.

The only place that calls a handler. A handler's failure is a result here; whatever else goes wrong ends the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog

from rmqd.consumer.process_queue import ProcessQueue
from rmqd.consumer.settlement import EXPIRED
from rmqd.handler import Batch
from rmqd.wire.message import Message

if TYPE_CHECKING:
    from rmqd.consumer.concurrently import ConsumeMessageConcurrentlyService

log = structlog.get_logger(__name__)

TIME_SLICE_SECONDS = 0.005  # a handler that never awaits must still let heartbeats and pulls through
BLOCKED_SECONDS = 1.0


class Worker:
    """Runs until it is cancelled; while a handler has a batch, `queue` is the queue that it came from."""

    def __init__(
        self, service: ConsumeMessageConcurrentlyService, call: Callable[[Batch], Awaitable[object]], number: int
    ) -> None:
        self.number = number
        self.queue: ProcessQueue | None = None
        self.started = 0.0
        self.expired = False
        self.replaced = False  # hung past its cancellation: another worker has its slot now
        self.batch: Batch | None = None  # what the handler has now
        self._service = service
        self._call = call

    async def run(self) -> None:
        """Take batches for ever."""
        service, call = self._service, self._call
        line, clock, size = service.line, service.clock.monotonic, service.batch_size
        started = clock()
        slice_end = started + TIME_SLICE_SECONDS
        while True:
            if not line:
                await service.rest()
                started = clock()
                slice_end = started + TIME_SLICE_SECONDS
                continue
            queue = line[0]
            pending = queue.pending
            if not pending:  # given up meanwhile
                line.popleft().queued = False
                continue
            messages = [pending.popleft()] if size == 1 else queue.take(size)
            if not pending:
                line.popleft().queued = False
            elif len(line) > 1:
                line.rotate(-1)
            if service.can_wake and line:
                service.wake()
            self.batch = batch = Batch(messages, queue.message_queue)
            self.queue, self.started = queue, started
            queue.in_flight += 1
            error: BaseException | None = None
            try:
                await call(batch)
            except asyncio.CancelledError as cancelled:
                if not self._was_expired():
                    raise
                error = cancelled
            except (Exception, SystemExit) as raised:  # noqa: BLE001  whatever a handler raises is its result
                error = raised
            if self.replaced:
                return
            self.batch = None
            ended = clock()
            if error is None and batch.decided is None and not queue.dropped:
                age = ended + service.wall_offset - messages[0].store_timestamp * 0.001
                queue.finish(messages)
                queue.stats.acknowledged(len(messages), ended - started, age)
            else:
                await self._settle(queue, batch, messages, error)
            queue.in_flight -= 1
            if queue.idle is not None:
                queue.note_idle()
            if ended > slice_end:
                if ended - started > BLOCKED_SECONDS:
                    service.took_long(started)
                await asyncio.sleep(0)
                ended = clock()
                slice_end = ended + TIME_SLICE_SECONDS
            started = ended

    async def _settle(
        self, queue: ProcessQueue, batch: Batch, messages: list[Message], error: BaseException | None
    ) -> None:
        now = self._service.clock.monotonic()
        age = now + self._service.wall_offset - messages[0].store_timestamp * 0.001
        queue.stats.handled_in(len(messages), now - self.started, age)
        expired, self.expired = self.expired, False
        await self._service.settlement.settle(queue, batch, EXPIRED if expired else error)

    def _was_expired(self) -> bool:
        """Whether a cancellation was the deadline's; if so it is taken back, for this task goes on."""
        task = asyncio.current_task()
        if not self.expired or task is None:
            return False
        return task.uncancel() == 0
