"""One popped assignment, a queue or all queues of a broker: from its first pop to its last acknowledgement."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

import structlog

from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.block import PopBlock
from rmqd.consumer.pop.loop import PopLoop
from rmqd.consumer.pop.process_queue import PopProcessQueue
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.pop.start import begin
from rmqd.consumer.pop.status import PopStatus
from rmqd.consumer.pull.backoff import until_answered
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

KEEP_SECONDS: Final = 0.1  # delay until finished messages of a block are acknowledged while handlers have the rest
RENEW_AT: Final = 2 / 3  # share of the invisible time, then it is extended, or a waiting message is discarded
RENEW_AGAIN_SECONDS: Final = 1.0
FLUSH_SECONDS: Final = 3.0  # how long the responses to the last acknowledgements may take
HURRIED_FLUSH_SECONDS: Final = 0.5


class PopAssignment(Assignment):
    """Pops messages, and keeps those in flight invisible, until it is released.

    At the release, messages that no handler has become visible to other members at once. Messages that handlers finish
    are still acknowledged.
    """

    is_popped = True
    loop_type: ClassVar[type[PopLoop]] = PopLoop
    status_type: ClassVar[type[PopStatus]] = PopStatus
    status: PopStatus

    def __init__(self, context: GroupContext, receipts: PopReceipts, message_queue: MessageQueue) -> None:
        super().__init__(context, message_queue)
        self.status = self.status_type(context, message_queue, self.loop_type(context, receipts, message_queue))
        self._receipts = receipts

    @property
    def loop(self) -> PopLoop:
        """The loop that pops. It exists from the beginning."""
        return self.status.loop

    @property
    def is_acknowledged(self) -> bool:
        """Whether the broker has received the acknowledgements of all finished messages."""
        return not self.loop.unacknowledged and self._receipts.is_idle

    async def run(self) -> None:
        """Pop until `leave`."""
        log.info("pop.started", queue=str(self.message_queue))
        async with asyncio.TaskGroup() as tasks:
            popping = tasks.create_task(self._pop(), name=f"pops:{self.message_queue}")
            keeping = tasks.create_task(self._keep(tasks), name=f"keep hidden:{self.message_queue}")
            await self._leaving.begun.wait()
            popping.cancel()
            await asyncio.wait((popping,))
            await self._popped_last()
            self._show_waiting()
            await self._leaving.drain(self.loop.process_queues)
            keeping.cancel()
        for process_queue in self.loop.process_queues:
            for block in list(process_queue.blocks):
                assert isinstance(block, PopBlock)
                process_queue.settle_finished(block)
        await self._receipts.flush(HURRIED_FLUSH_SECONDS if self._leaving.hurried.is_set() else FLUSH_SECONDS)
        for process_queue in self.loop.process_queues:
            process_queue.drop(self._leaving.cause)

    async def _pop(self) -> None:
        context, queue = self._context, self.message_queue
        await until_answered(context, queue, lambda: begin(context, queue))
        await self.loop.run()

    async def _popped_last(self) -> None:
        """Called when no pop is in progress any more. Handlers may still have messages."""

    def _show_waiting(self) -> None:
        """Stop handing out messages. Waiting messages become visible to other members."""
        for process_queue in self.loop.process_queues:
            for block in list(process_queue.blocks):
                assert isinstance(block, PopBlock)
                offsets = process_queue.waiting_of(block)
                if offsets:
                    self._receipts.show_again(block, offsets)
                    process_queue.let_go_waiting(block)
            process_queue.leave()

    async def _keep(self, tasks: asyncio.TaskGroup) -> None:
        """Acknowledge finished messages of unfinished blocks, and keep messages in flight invisible."""
        while True:
            if not self.loop.unacknowledged:
                self.loop.cached.clear()
                await self.loop.cached.wait()
            await self._context.clock.sleep(KEEP_SECONDS)
            now = self._context.clock.monotonic()
            for process_queue in self.loop.process_queues:
                for block in list(process_queue.blocks):
                    assert isinstance(block, PopBlock)
                    process_queue.settle_finished(block)
                    if now >= block.look_at:
                        self._look_at(tasks, process_queue, block)

    def _look_at(self, tasks: asyncio.TaskGroup, process_queue: PopProcessQueue, block: PopBlock) -> None:
        """Extend the invisible time of a block's messages in flight, and discard its waiting messages.

        While the group is held up, keep the waiting messages too: each would lose an attempt at another member.
        """
        waiting = [] if self._context.is_held_up else process_queue.waiting_of(block)
        if waiting:
            process_queue.let_go_waiting(block)
            self.loop.swamped = True
            log.warning(
                "pop.left_to_others",
                queue=str(block.queue),
                messages=len(waiting),
                invisible_seconds=self._context.options.pop_invisible_time_seconds,
            )
        handled = block.unsettled(message for message in block.messages if not message.finished)
        now = self._context.clock.monotonic()
        held = [offset for offset in handled if now < block.due_of(offset)]
        if not held:
            block.look_at = float("inf")
            return
        block.look_at = float("inf")  # until the responses arrive
        tasks.create_task(self._renew(block, held), name=f"renew:{block.queue}")

    async def _renew(self, block: PopBlock, offsets: list[int]) -> None:
        seconds = self._context.options.pop_invisible_time_seconds
        invisible_ms = round(seconds * 1000)
        renewed = await asyncio.gather(*(self._receipts.renew(block, offset, invisible_ms) for offset in offsets))
        if all(renewed):
            # the new time counts from the request, not from the response
            block.look_at = min(block.due_of(offset) for offset in offsets) - seconds * (1 - RENEW_AT)
        else:
            block.look_at = self._context.clock.monotonic() + RENEW_AGAIN_SECONDS
