"""Orderly consumption: one batch of a queue at a time, in the queue's order, while its lock is ours."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from rmqd.clock import Clock
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.orderly_settlement import OrderlySettlement
from rmqd.consumer.handling.settlement import EXPIRED
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.handling.worker import Worker
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.services import Leases, WaysBack
from rmqd.handler import Batch, Lease, LoadedHandler, ManualBatch, OrderlyBatch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

NOTHING = ()


class ConsumeMessageOrderlyService(HandlerSlots):
    """Hands one batch of each queue to a handler at a time; up to `concurrency` queues side by side.

    A queue gives way to the others after a time slice of milliseconds, far below Java's 60 s
    (`rocketmq.client.maxTimeConsumeContinuously`). A queue is in `queued` here also while a worker has its turn at it,
    and while it rests.
    """

    def __init__(
        self, options: ConsumerOptions, handler: LoadedHandler, send_back: WaysBack, leases: Leases, clock: Clock
    ) -> None:
        super().__init__(options, handler, clock)
        self.batch_type = OrderlyBatch if options.auto_commit else ManualBatch
        self._settlement = OrderlySettlement(send_back, options, self._rest, clock)
        self._leases = leases
        # which ProcessQueue has its turn or, where it was replaced while a handler has a batch of it, has the next one
        self._turns: dict[MessageQueue, ProcessQueue] = {}
        self._resting: set[ProcessQueue] = set()
        self._hanging: set[ProcessQueue] = set()  # a call that nobody waits for keeps them blocked

    def enter(self, queue: ProcessQueue) -> Lease | None:
        """Begin a turn at this queue of the line, under its lock; None if it has nothing to hand out now."""
        place = queue.message_queue
        if self._turns.setdefault(place, queue) is not queue:
            self._turns[place] = queue
            return None
        lease = self._leases.lease(place)
        if lease is None or not queue.pending:
            del self._turns[place]
            self.queued.discard(queue)  # it is submitted again with its next messages, or when its lock is won back
            return None
        queue.begin_turn()
        return lease

    def leave(self, queue: ProcessQueue) -> None:
        """End a turn, unless a call of it still runs."""
        if queue in self._hanging:
            return
        queue.end_turn()
        following = self._turns.pop(queue.message_queue)
        if following is not queue:
            self.queued.discard(following)
            self.submit(following)
        if queue not in self._resting:
            self.queued.discard(queue)
            self.submit(queue)

    def settle_at_once(self, queue: ProcessQueue, batch: Batch) -> bool | None:
        """Finish or repeat each message, unless one is to be dead-lettered, or the call still runs."""
        return None if queue in self._hanging else self._settlement.settle_at_once(queue, batch)

    async def settle(self, queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Finish or repeat each message, unless the call still runs: then that is done at its end."""
        return queue in self._hanging or await self._settlement.settle(queue, batch, error)

    def is_settling(self) -> bool:
        """What hung stays in its queue: nothing is to be waited for."""
        return False

    def _worker(self, call: Callable[[Batch], Awaitable[object]], number: int) -> Worker:
        return OrderlyWorker(self, call, number)

    def _rest(self, queue: ProcessQueue, messages: list[Message], seconds: float) -> None:
        self._resting.add(queue)
        queue.postpone(messages)
        self.clock.call_later(seconds, self._rested, queue, messages)

    def _rested(self, queue: ProcessQueue, messages: list[Message]) -> None:
        self._resting.discard(queue)
        self.queued.discard(queue)
        if queue.return_postponed(messages):
            self.submit(queue)

    def _give_up(self, worker: Worker) -> Callable[[], None]:
        queue, batch = worker.queue, worker.batch
        assert queue is not None
        assert batch is not None
        self._hanging.add(queue)
        return partial(self._call_ended, queue, batch)

    def _call_ended(self, queue: ProcessQueue, batch: Batch) -> None:
        """A call past its deadline has come back: only now may its batch be repeated."""
        self._came_back()
        if not self.ended:
            self._apart.add(asyncio.create_task(self._settle_ended(queue, batch), name="settle-expired"))

    async def _settle_ended(self, queue: ProcessQueue, batch: Batch) -> None:
        await self._settlement.settle(queue, batch, EXPIRED)
        self._hanging.remove(queue)
        self.leave(queue)


class OrderlyWorker(Worker):
    """Takes a queue out of the line for its turn, so that nobody else has a batch of it meanwhile."""

    def __init__(
        self, service: ConsumeMessageOrderlyService, call: Callable[[Batch], Awaitable[object]], number: int
    ) -> None:
        super().__init__(service, call, number)
        self._orderly = service

    async def _serve(self) -> None:
        """Take batches for ever."""
        service = self._orderly
        line, batch_type = service.line, service.batch_type
        while True:
            if not line:
                await service.rest()
                continue
            queue = line.popleft()
            lease = service.enter(queue)
            if lease is None:
                continue
            if line and service.can_wake:
                service.wake()
            self.queue = queue
            self.halted = False
            try:
                await self._work_at(queue, partial(batch_type, lease), NOTHING)
            finally:
                if not self.replaced:
                    service.leave(queue)
            if self.replaced:
                return
