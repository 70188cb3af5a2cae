"""One assignment that is popped, a queue or all queues of a broker: from its first pop to its last acknowledgement."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.block import PopBlock
from rmqd.consumer.pop.loop import PopLoop
from rmqd.consumer.pop.process_queue import PopProcessQueue
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.pop.start import begin
from rmqd.consumer.pop.status import PopStatus
from rmqd.consumer.stats.snapshot import QueueSnapshot
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

KEEP_SECONDS: Final = 0.1  # how soon what is finished of a block is acknowledged, while handlers have the rest
RENEW_AT: Final = 2 / 3  # of the time that a message is hidden; also where one that waits is left to others
RENEW_AGAIN_SECONDS: Final = 1.0
FLUSH_SECONDS: Final = 3.0  # for acknowledgements to be answered, when the handlers are done
HURRIED_FLUSH_SECONDS: Final = 0.5


class PopAssignment:
    """Pops, and keeps hidden what handlers have, until told to leave.

    `run` ends when what handlers had is acknowledged, or the time for it is over. What no handler had is shown to the
    other members at once.
    """

    def __init__(self, context: GroupContext, receipts: PopReceipts, place: MessageQueue) -> None:
        self.message_queue = place
        self.loop = PopLoop(context, receipts, place)
        self.status = PopStatus(context, self.loop, place)
        self._context = context
        self._receipts = receipts
        self._leaving = asyncio.Event()
        self._drain_seconds = 0.0
        self._cause = "handed_over"
        self._hurry = asyncio.Event()

    @property
    def is_leaving(self) -> bool:
        """Whether it was told to end."""
        return self._leaving.is_set()

    @property
    def process_queues(self) -> list[PopProcessQueue]:
        """The caches of the queues that messages came from."""
        return list(self.loop.queues.values())

    def snapshot(self) -> QueueSnapshot:
        """What is known of it."""
        return self.status.snapshot()

    def leave(self, drain_seconds: float, *, last: bool = False) -> None:
        """Pop no more; handlers get `drain_seconds` to finish what they have."""
        if not self.is_leaving:
            self._drain_seconds, self._cause = drain_seconds, "stopped" if last else "handed_over"
            self._leaving.set()

    def hurry(self) -> None:
        """Wait for handlers no longer."""
        self._hurry.set()

    async def run(self) -> None:
        """Pop until `leave`."""
        log.info("pop.starts", queue=str(self.message_queue))
        async with asyncio.TaskGroup() as tasks:
            popping = tasks.create_task(self._pop(), name=f"pops:{self.message_queue}")
            keeping = tasks.create_task(self._keep(tasks), name=f"keep hidden:{self.message_queue}")
            await self._leaving.wait()
            popping.cancel()
            await asyncio.wait((popping,))
            self._show_waiting()
            drained = await self._drain()
            keeping.cancel()
        for queue in self.process_queues:
            for block in list(queue.blocks):
                assert isinstance(block, PopBlock)
                queue.settle_finished(block)
        await self._receipts.flush(HURRIED_FLUSH_SECONDS if self._hurry.is_set() else FLUSH_SECONDS)
        for queue in self.process_queues:
            queue.drop(self._cause)
        if not drained:
            log.warning("queue.not_drained", queue=str(self.message_queue), batches=self._in_flight())

    async def _pop(self) -> None:
        await begin(self._context, self.message_queue)
        await self.loop.run()

    def _show_waiting(self) -> None:
        """Hand out nothing more, and let the others have what no handler has."""
        for queue in self.process_queues:
            for block in list(queue.blocks):
                assert isinstance(block, PopBlock)
                offsets = queue.waiting_of(block)
                if offsets:
                    self._receipts.show_again(block, offsets)
                    queue.let_go_waiting(block)
            queue.leave()

    def _in_flight(self) -> int:
        return sum(queue.in_flight for queue in self.process_queues)

    async def _drain(self) -> bool:
        """Wait until no handler has a batch; False if the time for it ran out."""
        busy = [queue for queue in self.process_queues if queue.in_flight]
        if not busy:
            return True
        idle = asyncio.gather(*(queue.wait_idle() for queue in busy))
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait((idle, hurry), timeout=self._drain_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurry.cancel()
            await asyncio.gather(idle, hurry, return_exceptions=True)
        return not self._in_flight()

    async def _keep(self, tasks: asyncio.TaskGroup) -> None:
        """Acknowledge what is finished of blocks that are not, and keep hidden what handlers have."""
        while True:
            if not self.loop.unacknowledged:
                self.loop.cached.clear()
                await self.loop.cached.wait()
            await asyncio.sleep(KEEP_SECONDS)
            now = self._context.clock.monotonic()
            for queue in self.process_queues:
                for block in list(queue.blocks):
                    assert isinstance(block, PopBlock)
                    queue.settle_finished(block)
                    if now >= block.look_at:
                        self._look_at(tasks, queue, block)

    def _look_at(self, tasks: asyncio.TaskGroup, queue: PopProcessQueue, block: PopBlock) -> None:
        """The messages of a block are about to be shown to others: keep those that a handler has."""
        waiting = queue.waiting_of(block)
        if waiting:
            queue.let_go_waiting(block)
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
        block.look_at = float("inf")  # until the answers are there
        tasks.create_task(self._renew(block, held), name=f"renew:{block.queue}")

    async def _renew(self, block: PopBlock, offsets: list[int]) -> None:
        seconds = self._context.options.pop_invisible_time_seconds
        invisible_ms = round(seconds * 1000)
        renewed = await asyncio.gather(*(self._receipts.renew(block, offset, invisible_ms) for offset in offsets))
        later = seconds * RENEW_AT if all(renewed) else RENEW_AGAIN_SECONDS
        block.look_at = self._context.clock.monotonic() + later
