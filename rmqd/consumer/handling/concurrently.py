"""Concurrent consumption by workers, or by a program that polls the messages. Failed messages are sent back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.circuit import Circuit
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.handling.batch_worker import Turn, Worker
from rmqd.consumer.handling.circuit_breaker import HeldBatches
from rmqd.consumer.handling.handler_failures import EXPIRED
from rmqd.consumer.handling.ready_queues import Make, ReadyQueues
from rmqd.consumer.handling.settlement import Settlement
from rmqd.consumer.handling.slots import HandlerSlots
from rmqd.consumer.health.causes import Problem, found
from rmqd.consumer.services import RetryPolicy, RunningCall
from rmqd.errors import RmqdError
from rmqd.handler_api.batch import Batch, LoadedHandler
from rmqd.runtime.clock import Clock, wait_within
from rmqd.runtime.plain_text import duration
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message


class ConsumeMessageConcurrentlyService(HandlerSlots):
    """Hands batches to `concurrency` workers, round robin over the queues with messages."""

    def __init__(
        self, options: ConsumerOptions, handler: LoadedHandler, retry_policy: RetryPolicy, clock: Clock
    ) -> None:
        super().__init__(options, handler, clock)
        self.settlement = Settlement(
            retry_policy, options.delay_level_when_next_consume, self.ready_queues.submit, clock, self.confirm_settled
        )
        self.settle_at_once, self.settle = self.settlement.settle_at_once, self.settlement.settle
        if self.circuit is not None:
            begin, queues = self._begin_in_background, self.ready_queues
            self.use_breaker(HeldBatches(self.circuit, self.settlement, retry_policy, begin, queues, clock))

    def begin_turn(self) -> Turn | None:
        """Take the next ready queue. It stays ready for other workers until they find it empty."""
        queues = self.ready_queues.queues
        process_queue = queues[0]
        queues.rotate(-1)  # the next worker begins with the next queue
        process_queue.begin_turn()
        batching = self._batching_queues
        make: Make = Batch if batching is None else batching.making(process_queue, Batch, self.halt)
        if self.divider is not None:
            make = self.divider.dividing(make, process_queue.return_taken, in_order=False)
        return process_queue, make, process_queue.pending, ProcessQueue.end_turn

    def is_settling(self) -> bool:
        """Whether batches of hung calls are being sent back. The group fails only after that.

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
        await self.settle(process_queue, batch, EXPIRED)
        process_queue.end_turn()


class PolledQueue(ProcessQueue):
    """A cache that drops returned messages at once. So thresholds do not block a program that commits rarely.

    Only the program knows when it is done with the returned messages. Until it confirms them, the commit offset stays
    below them, and the queue is busy. A release waits for the program as it would wait for a handler.
    """

    __slots__ = ("confirmed",)

    def __init__(self, message_queue: MessageQueue, next_offset: int, *more: Any) -> None:
        super().__init__(message_queue, next_offset, *more)
        self.confirmed = next_offset  # the program is done with all messages below

    @property
    def position(self) -> int:
        """The offset below which every message was returned."""
        return super().commit_offset()

    def commit_offset(self) -> int:
        """Return the offset that the program has confirmed; never above `position`."""
        return min(self.confirmed, self.position)

    def confirm(self, offset: int | None = None) -> None:
        """Record that the program is done with all messages below `offset`, by default with all returned messages."""
        if not self.dropped:
            self.confirmed = self.position if offset is None else offset
        if self.confirmed >= self.position:
            self.release()

    def drop(self, because: str) -> None:
        """End this ownership. Unconfirmed messages are delivered again, so nothing waits for the program."""
        super().drop(because)
        self.release()

    def release(self) -> None:
        """Stop waiting for the program."""
        if self.in_flight:
            self.end_turn()


class PollService:
    """Returns messages of all queues in turn.

    `chosen` are the queues that the program assigned instead of a share of the group's queues.
    """

    cache = PolledQueue
    circuit: Circuit | None = None
    problem: Problem | None = None
    concurrency = 1
    keeps_calls_open = calls_left = False

    def __init__(self, clock: Clock, chosen: Collection[MessageQueue] = ()) -> None:
        self.chosen = chosen
        self._clock = clock
        self._ready_queues = ReadyQueues()
        self.submit, self.pause, self.resume = (
            self._ready_queues.submit,
            self._ready_queues.pause,
            self._ready_queues.resume,
        )
        self._polled_at = clock.monotonic()

    async def run(self) -> None:
        """Wait until cancelled: the program does the work."""
        await asyncio.Event().wait()

    def change(self, _: object) -> None:
        """Do nothing: a poll has neither concurrency nor turns to halt."""

    halt = change

    def calls(self) -> list[RunningCall]:
        return []

    def explain(self, process_queue: ProcessQueue) -> Problem:
        """Report that the messages wait for the program."""
        seconds = self._clock.monotonic() - self._polled_at
        step = "call poll more often, or close the consumer: its queues then go to other members"
        return found("slow_handler", f"messages wait for a poll; the last one was {duration(seconds)} ago", step=step)

    async def call_in_background(self, batch: Batch, ended: Callable[[], None]) -> None:
        """Refuse an operator's message. Raises RmqdError."""
        ended()
        raise RmqdError("this member is a pull consumer: it has no handler to call")

    async def wait_for_messages(self, seconds: float) -> bool:
        """Wait until a queue has messages, for at most `seconds`. Returns whether a queue has messages."""
        return await wait_within(self._clock, seconds, self._ready_queues.wait_for_work())

    def take(self, most: int) -> list[Message]:
        """Return up to `most` messages that are cached now."""
        self._polled_at, messages = self._clock.monotonic(), list[Message]()
        queues, queued = self._ready_queues.queues, self._ready_queues.queued
        while queues and len(messages) < most:
            process_queue = queues[0]
            if process_queue.dropped or not process_queue.pending:
                queued.discard(queues.popleft())
                continue
            assert isinstance(process_queue, PolledQueue)
            taken = process_queue.take(most - len(messages))
            if not process_queue.in_flight:
                process_queue.begin_turn()
            process_queue.finish(taken)
            process_queue.stats.acknowledged(taken, 0.0, self._clock.wall() - taken[0].store_timestamp / 1000)
            messages += taken
            queues.rotate(-1)
        return messages
