"""Orderly consumption: one batch of a queue at a time, in queue order, while this member holds the queue's lock."""

from __future__ import annotations

from functools import partial

from rmqd.clock import Clock
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.gathering import Make
from rmqd.consumer.handling.orderly_settlement import OrderlySettlement
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.handling.worker import Turn
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.services import Leases, WaysBack
from rmqd.handler_api import Batch, ManualBatch, OrderlyBatch
from rmqd.loaded_handler import LoadedHandler
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

NOTHING = ()


class ConsumeMessageOrderlyService(HandlerSlots):
    """Hands out one batch of each queue at a time, from up to `concurrency` queues at once.

    A queue yields to the others after a time slice of milliseconds, far below Java's 60 s
    (`rocketmq.client.maxTimeConsumeContinuously`). Here `line.queued` also contains a queue while a worker has its turn
    at it, and while it is suspended.
    """

    def __init__(
        self, options: ConsumerOptions, handler: LoadedHandler, send_back: WaysBack, leases: Leases, clock: Clock
    ) -> None:
        super().__init__(options, handler, clock)
        self._batch_type = OrderlyBatch if options.auto_commit else ManualBatch
        ways = self._patient(send_back)
        self._settlement = OrderlySettlement(ways or send_back, options, self._rest, clock, self.confirm_settled)
        self._settle_batch = self._forgiving(ways, self._settlement.settle)
        self._leases = leases
        # the ProcessQueue that a worker serves; if it was replaced while a handler has its batch, the one that is next
        self._turns: dict[MessageQueue, ProcessQueue] = {}
        self._resting: set[ProcessQueue] = set()
        self._takes_late_results = True

    def begin_turn(self) -> Turn | None:
        """Take the next queue out of the line, under its lock."""
        line = self.line
        process_queue = line.queues.popleft()
        message_queue = process_queue.message_queue
        if self._turns.setdefault(message_queue, process_queue) is not process_queue:
            self._turns[message_queue] = process_queue
            return None
        lease = self._leases.lease(message_queue)
        if lease is None:
            del self._turns[message_queue]
            line.queued.discard(process_queue)  # it returns with its next messages, or when its lock is regained
            return None
        process_queue.begin_turn()
        if line.queues and line.can_wake:
            line.wake()
        make: Make = partial(self._batch_type, lease)
        if self._gathering is not None:
            make = self._gathering.making(process_queue, make, self.halt)
        return process_queue, make, NOTHING, self._end_turn

    def _end_turn(self, process_queue: ProcessQueue) -> None:
        """Put the queue back into the line, unless it is suspended."""
        process_queue.end_turn()
        following = self._turns.pop(process_queue.message_queue)
        if following is not process_queue:
            self.line.queued.discard(following)
            self.submit(following)
        if process_queue not in self._resting:
            self.line.queued.discard(process_queue)
            self.submit(process_queue)

    def settle_at_once(self, process_queue: ProcessQueue, batch: Batch) -> bool | None:
        """Finish or retry each message at once. None if one must be dead-lettered."""
        return self._settlement.settle_at_once(process_queue, batch)

    async def settle(self, process_queue: ProcessQueue, batch: Batch, error: BaseException | None) -> bool:
        """Finish, retry or dead-letter each message."""
        return await self._settle_batch(process_queue, batch, error)

    def is_settling(self) -> bool:
        """Return False: no call is abandoned, so the group never fails because of hung calls."""
        return False

    def _waits_behind_calls(self, process_queue: ProcessQueue) -> bool:
        """Whether messages are pending behind the handler's batch."""
        return bool(process_queue.pending)

    def _rest(self, process_queue: ProcessQueue, messages: list[Message], seconds: float) -> None:
        self._resting.add(process_queue)
        process_queue.postpone(messages)
        self.clock.call_later(seconds, self._rested, process_queue, messages)

    def _rested(self, process_queue: ProcessQueue, messages: list[Message]) -> None:
        """Put the queue back into the line. If its turn has not ended, the end of the turn does it.

        That happens if the event loop was busy for longer than the suspension. Two workers would serve the queue if it
        were in the line before the end of its turn.
        """
        self._resting.discard(process_queue)
        is_pending = process_queue.return_postponed(messages)
        if self._turns.get(process_queue.message_queue) is process_queue:
            return
        self.line.queued.discard(process_queue)
        if is_pending:
            self.submit(process_queue)
