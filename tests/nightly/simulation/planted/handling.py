"""Bugs in batches, workers and failed messages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.batch_worker import Worker
from rmqd.consumer.handling.concurrently import ConsumeMessageConcurrentlyService
from rmqd.consumer.handling.orderly import ConsumeMessageOrderlyService, OrderlySettlement
from rmqd.consumer.handling.ready_queues import ReadyQueues
from rmqd.consumer.handling.send_back import SendBack
from rmqd.consumer.handling.settlement import Settlement
from rmqd.handler_api.batch import Batch
from rmqd.wire.messages.message import Message
from tests.nightly.simulation.planted.registry import (
    both,
    concurrently,
    fails,
    hands_over,
    orderly,
    plant,
    pulled,
    slow,
    tries,
)


@plant
def lost_wake_up(patch: pytest.MonkeyPatch) -> None:
    """Sleeping workers are not woken when a queue has messages."""
    patch.setattr(ReadyQueues, "wake", lambda self: None)


@plant
def queue_leaves_the_line(patch: pytest.MonkeyPatch) -> None:
    """A queue that a worker found empty is never scheduled again."""

    class Queued(set[ProcessQueue]):
        def discard(self, element: object) -> None:
            """Do nothing."""

    right = ReadyQueues.__init__

    def init(self: ReadyQueues) -> None:
        right(self)
        self.not_to_add = Queued()

    patch.setattr(ReadyQueues, "__init__", init)


@plant
def slot_lost_at_a_failure(patch: pytest.MonkeyPatch) -> None:
    """A worker whose handler failed stops working."""
    right = Worker._settle

    async def settle(
        self: Worker, process_queue: ProcessQueue, batch: Batch, messages: list[Message], error: BaseException | None
    ) -> bool:
        is_resting = await right(self, process_queue, batch, messages, error)
        if error is not None:
            await asyncio.get_running_loop().create_future()
        return is_resting

    patch.setattr(Worker, "_settle", settle)


@plant
def failure_ends_the_group(patch: pytest.MonkeyPatch) -> None:
    """An exception of the handler ends the whole group, and not only its batch."""

    async def settle(self: Worker, process_queue: ProcessQueue, batch: Batch, messages: Any, error: Any) -> bool:
        raise error

    patch.setattr(Worker, "_settle", settle)


@plant
def failed_counts_as_done(patch: pytest.MonkeyPatch) -> None:
    """A batch whose handler failed is acknowledged."""

    async def settle(
        self: Worker, process_queue: ProcessQueue, batch: Batch, messages: list[Message], error: BaseException | None
    ) -> bool:
        process_queue.finish(messages)
        return False

    patch.setattr(Worker, "_settle", settle)


@plant(needs=concurrently)
def retry_sent_twice(patch: pytest.MonkeyPatch) -> None:
    """A failed message is sent back twice."""
    right = SendBack.retry

    async def retry(self: SendBack, message: Message, delay_level: int) -> bool:
        await right(self, message, delay_level)
        return await right(self, message, delay_level)

    patch.setattr(SendBack, "retry", retry)


@plant(needs=concurrently)
def retry_sent_and_repeated(patch: pytest.MonkeyPatch) -> None:
    """A message that was sent back is also handled again here, as if no broker had accepted it."""
    right = SendBack.retry

    async def retry(self: SendBack, message: Message, delay_level: int) -> bool:
        await right(self, message, delay_level)
        return False

    patch.setattr(SendBack, "retry", retry)


@plant(needs=concurrently)
def retry_not_sent(patch: pytest.MonkeyPatch) -> None:
    """A failed message is acknowledged, and not sent back."""

    async def retry(self: SendBack, message: Message, delay_level: int) -> bool:
        return True

    patch.setattr(SendBack, "retry", retry)


@plant(needs=tries("refuse"))
def refused_retry_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A retry that no broker accepts counts as sent."""
    right = SendBack.retry

    async def retry(self: SendBack, message: Message, delay_level: int) -> bool:
        await right(self, message, delay_level)
        return True

    patch.setattr(SendBack, "retry", retry)


@plant(needs=both(concurrently, pulled, fails, lambda plan: plan.batch_size > 1))
def only_the_first_of_a_failed_batch_is_sent_back(patch: pytest.MonkeyPatch) -> None:
    """Only the first message of a failed batch is redelivered."""
    right = Settlement._return

    async def send(self: Settlement, process_queue: ProcessQueue, returned: Any, error: Any) -> None:
        process_queue.finish([message for message, _ in returned[1:]])
        await right(self, process_queue, returned[:1], error)

    patch.setattr(Settlement, "_return", send)


@plant(needs=both(orderly, pulled, fails))
def order_given_up_at_a_failure(patch: pytest.MonkeyPatch) -> None:
    """An orderly queue continues after a failed message, without waiting for its retry."""
    right = OrderlySettlement._carry_out

    def carry_out(self: OrderlySettlement, *arguments: Any) -> bool:
        right(self, *arguments)
        return False

    patch.setattr(OrderlySettlement, "_carry_out", carry_out)


@plant(needs=orderly)
def failed_orderly_message_passed_over(patch: pytest.MonkeyPatch) -> None:
    """An orderly queue counts a failed message as finished."""

    def suspend(
        self: ConsumeMessageOrderlyService, process_queue: ProcessQueue, messages: list[Message], seconds: float
    ) -> None:
        process_queue.finish(messages)

    patch.setattr(ConsumeMessageOrderlyService, "_suspend", suspend)


@plant(needs=orderly)
def orderly_queue_in_two_slots(patch: pytest.MonkeyPatch) -> None:
    """Workers handle batches of one orderly queue in parallel."""
    right = ConsumeMessageOrderlyService.begin_turn

    def begin_turn(self: ConsumeMessageOrderlyService) -> Any:
        process_queue = self.ready_queues.queues[0]
        turn = right(self)
        if turn is not None:
            self.ready_queues.queues.append(process_queue)
        return turn

    def end_turn(self: ConsumeMessageOrderlyService, process_queue: ProcessQueue) -> None:
        process_queue.end_turn()
        self._serving.pop(process_queue.message_queue, None)
        if not process_queue.retrying and process_queue not in self.ready_queues.queues:
            self.ready_queues.not_to_add.discard(process_queue)
            self.submit(process_queue)

    patch.setattr(ConsumeMessageOrderlyService, "begin_turn", begin_turn)
    patch.setattr(ConsumeMessageOrderlyService, "_end_turn", end_turn)


@plant(needs=both(hands_over, fails))
def turn_never_ends(patch: pytest.MonkeyPatch) -> None:
    """A turn with a failed handler counts as unfinished, so its queue never drains."""
    right = Worker._settle

    async def settle(
        self: Worker, process_queue: ProcessQueue, batch: Batch, messages: list[Message], error: BaseException | None
    ) -> bool:
        process_queue.in_flight += error is not None
        return await right(self, process_queue, batch, messages, error)

    patch.setattr(Worker, "_settle", settle)


@plant(needs=both(hands_over, slow, concurrently))
def turn_ends_before_its_batch(patch: pytest.MonkeyPatch) -> None:
    """A turn ends when its handler is called: a queue is released while handlers have batches of it."""
    begin = ConsumeMessageConcurrentlyService.begin_turn

    def begin_turn(self: ConsumeMessageConcurrentlyService) -> Any:
        turn = begin(self)
        if turn is None:
            return None
        process_queue, make, for_others, _ = turn
        process_queue.end_turn()
        return process_queue, make, for_others, lambda _: None

    patch.setattr(ConsumeMessageConcurrentlyService, "begin_turn", begin_turn)
