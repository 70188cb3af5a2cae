"""How an assignment ends: it is told to leave, and then waits for a limited time until handlers return their batches.

There are two kinds of leaving. In a *hand-over* another member is to have the queue, and may wait for it: the time is
short, and the ownership says how much longer the queue can safely be kept (`linger`). At the *end of the group*
(`is_last`) no other member takes the queue before it is let go, and handlers get the group's shutdown time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)


class Leaving:
    """Whether one assignment was told to leave, and until when it waits for handlers."""

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self.begun = asyncio.Event()
        self.hurried = asyncio.Event()
        self.is_last = False  # whether the whole group ends, and not only this assignment
        self.until = float("inf")  # when the wait for handlers is over (monotonic)
        self._context = context
        self._message_queue = message_queue

    @property
    def cause(self) -> str:
        """The cause of duplicates that is counted for messages which handlers still have when the time is over."""
        return "stopped" if self.is_last else "handed_over"

    def begin(self, drain_seconds: float, *, last: bool) -> None:
        """Leave; handlers get `drain_seconds` to finish what they have."""
        if not self.begun.is_set():
            self.until, self.is_last = self._context.clock.monotonic() + drain_seconds, last
            self.begun.set()

    async def drain(self, process_queues: Iterable[ProcessQueue]) -> bool:
        """Wait until no handler has a batch of these; False if the time for it ran out."""
        busy = [one for one in process_queues if one.is_busy]
        if not busy:
            return True
        idle = asyncio.gather(*(one.wait_idle() for one in busy))
        hurry = asyncio.create_task(self.hurried.wait())
        try:
            await self._wait(idle, hurry)
            if not (idle.done() or hurry.done() or self.is_last):
                self.until += self._context.ownership.linger(self._message_queue)
                await self._wait(idle, hurry)
        finally:
            for waiting in (hurry, idle):
                waiting.cancel()
            await asyncio.gather(hurry, idle, return_exceptions=True)
        if left := [one for one in busy if one.is_busy]:
            log.warning("queue.not_drained", queue=str(self._message_queue), batches=sum(one.in_flight for one in left))
        return not left

    async def _wait(self, *either: asyncio.Future[Any]) -> None:
        left = self.until - self._context.clock.monotonic()
        await self._context.clock.wait(either, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
