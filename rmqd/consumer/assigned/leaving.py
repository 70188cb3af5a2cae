"""Release of an assignment: it is signalled, and then batches in flight are drained for a limited time.

There are two kinds of release. In a *hand-over*, another member may wait for the queue. So the time is short, and the
ownership decides how much longer this member can safely keep the queue (`linger`). At the *end of the group*
(`is_last`), no other member acquires the queue before its release, and handlers get the group's shutdown time.
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
    """Whether the release of one assignment was requested, and how long it waits for handlers."""

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self.begun = asyncio.Event()
        self.hurried = asyncio.Event()
        self.is_last = False  # whether the whole group ends, and not only this assignment
        self.until = float("inf")  # when the wait for handlers ends (monotonic)
        self._context = context
        self._message_queue = message_queue

    @property
    def cause(self) -> str:
        """The cause of duplicates for messages that are still in flight when the time is over."""
        return "stopped" if self.is_last else "handed_over"

    def begin(self, drain_seconds: float, *, last: bool) -> None:
        """Begin the release. Handlers get `drain_seconds` to finish their batches."""
        if not self.begun.is_set():
            self.until, self.is_last = self._context.clock.monotonic() + drain_seconds, last
            self.begun.set()

    async def drain(self, process_queues: Iterable[ProcessQueue]) -> bool:
        """Wait until these queues have no batches in flight. Returns False if the time ran out."""
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
