"""Concurrent consumption: several batches of a queue are handled at once, and failed messages are sent back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.batch_worker import Worker, WorkerTurn
from rmqd.consumer.handling.circuit_breaker import BatchHoldingBreaker
from rmqd.consumer.handling.handler_failures import CALL_EXPIRED
from rmqd.consumer.handling.ready_queues import MakeBatch
from rmqd.consumer.handling.settlement import Settlement
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.services import RetryPolicy
from rmqd.handler_api.batch import NO_LOCK_LEASE, Batch, LoadedHandler, OrderlyBatch
from rmqd.runtime.clock import Clock


class ConsumeMessageConcurrentlyService(HandlerSlots):
    """Hands batches to `concurrency` workers, round robin over the queues with messages.

    Popped messages are instead handed out in the order of the pops, the oldest first. The queues of one pop keep the
    order of the broker's response, which starts with the highest priority of a priority topic.
    """

    def __init__(
        self, options: ConsumerOptions, handler: LoadedHandler, retry_policy: RetryPolicy, clock: Clock
    ) -> None:
        super().__init__(options, handler, clock)
        self._is_popping = options.consume_mode == "pop"
        # a lite topic has no lock, but in its batches too, messages wait behind a failed message
        self._make: MakeBatch = partial(OrderlyBatch, NO_LOCK_LEASE) if options.is_lite else Batch
        self.settlement = Settlement(
            retry_policy, options.delay_level_when_next_consume, self.ready_queues.submit, clock, self.confirm_settled
        )
        self.settle_at_once, self.settle = self.settlement.settle_at_once, self.settlement.settle
        if self.circuit is not None:
            begin, queues = self._begin_in_background, self.ready_queues
            self.use_breaker(BatchHoldingBreaker(self.circuit, self.settlement, begin, queues, clock))

    def begin_turn(self) -> WorkerTurn | None:
        """Take the next ready queue. The queue stays ready for other workers until a worker finds it empty."""
        queues = self.ready_queues.queues
        if self._is_popping and (self.circuit is None or self.circuit.state == "closed"):
            self.ready_queues.put_oldest_first()
            process_queue = queues[0]
        else:
            process_queue = queues[0]
            queues.rotate(-1)  # the next worker begins with the next queue
        process_queue.begin_turn()
        batching = self._batching_queues
        make = self._make if batching is None else batching.halting_make(process_queue, self._make, self.halt)
        if self.batch_separator is not None:
            make = self.batch_separator.separate_handlers(make, process_queue.return_taken, in_order=False)
        return process_queue, make, process_queue.pending, ProcessQueue.end_turn

    def is_settling(self) -> bool:
        """Return whether batches of hung calls are being sent back. The group fails only after that.

        Otherwise the same messages would hang the group again after its next start.
        """
        return bool(self.settlement.busy)

    def _note_abandoned(self, worker: Worker) -> Callable[[], None]:
        if worker.replaced:  # a worker that was not replaced settles the batch itself
            assert worker.process_queue is not None
            assert worker.batch is not None
            self._begin_in_background(self._settle_replaced(worker.process_queue, worker.batch))
        return super()._note_abandoned(worker)

    async def _settle_replaced(self, process_queue: ProcessQueue, batch: Batch) -> None:
        await self.settle(process_queue, batch, CALL_EXPIRED)
        process_queue.end_turn()
