"""Concurrent consumption: any free worker takes the next batch of any queue, and failed messages are sent back."""

from __future__ import annotations

from collections.abc import Callable

from rmqd.clock import Clock
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.circuit_breaker import HeldBatches, Settle
from rmqd.consumer.handling.gathering import Make
from rmqd.consumer.handling.settlement import Settlement
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.handling.verdict import EXPIRED
from rmqd.consumer.handling.worker import Turn, Worker
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.services import WaysBack
from rmqd.handler_api import Batch
from rmqd.loaded_handler import LoadedHandler


class ConsumeMessageConcurrentlyService(HandlerSlots):
    """Hands batches to `concurrency` workers, round robin over the queues with messages."""

    def __init__(self, options: ConsumerOptions, handler: LoadedHandler, send_back: WaysBack, clock: Clock) -> None:
        super().__init__(options, handler, clock)
        self.settlement = Settlement(
            send_back, options.delay_level_when_next_consume, self.line.submit, clock, self.confirm_settled
        )
        self._settle_batch: Settle[None] = self.settlement.settle
        if self.circuit is not None:
            breaker = HeldBatches(self.circuit, self.settlement, send_back, self._begin_apart, self.line, clock)
            self._settle_batch = breaker.settle
            self.break_by(breaker)

    def begin_turn(self) -> Turn | None:
        """Take the next queue. It stays in the line for other workers until they find it empty."""
        queues = self.line.queues
        process_queue = queues[0]
        queues.rotate(-1)  # the next worker begins with the next queue
        process_queue.begin_turn()
        gathering = self._gathering
        make: Make = Batch if gathering is None else gathering.making(process_queue, Batch, self.halt)
        return process_queue, make, process_queue.pending, ProcessQueue.end_turn

    def settle_at_once(self, process_queue: ProcessQueue, batch: Batch) -> bool | None:
        """Acknowledge the batch, unless the handler decided something else about a message."""
        return False if self.settlement.acknowledge(process_queue, batch) else None

    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Acknowledge, send back or dead-letter each message. The queue continues meanwhile."""
        await self._settle_batch(process_queue, batch, error)
        return False

    def is_settling(self) -> bool:
        """Whether batches of hung calls are being sent back. The group fails only after that.

        Otherwise the same messages would hang the group again after its next start.
        """
        return bool(self.settlement.busy)

    def _note_abandoned(self, worker: Worker) -> Callable[[], None]:
        if worker.replaced:  # otherwise the worker settles the batch itself
            assert worker.process_queue is not None
            assert worker.batch is not None
            self._begin_apart(self._settle_replaced(worker.process_queue, worker.batch))
        return super()._note_abandoned(worker)

    async def _settle_replaced(self, process_queue: ProcessQueue, batch: Batch) -> None:
        await self._settle_batch(process_queue, batch, EXPIRED)
        process_queue.end_turn()
