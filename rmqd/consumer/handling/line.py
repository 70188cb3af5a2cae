"""The queues with messages for a handler, and the workers that sleep until there are messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.wire.messages.message import Message

TRICKLE: Final = 4  # so few messages are handled faster than one iteration of the event loop takes


class Line:
    """The queues that workers take batches from, in turn.

    Most handlers need only one worker, so one worker is woken at a time. It wakes the next one if more work is left.
    """

    __slots__ = ("_held", "_wake_planned", "can_wake", "parked", "paused", "queued", "queues", "sleepers", "surplus")

    def __init__(self) -> None:
        self.queues: deque[ProcessQueue] = deque()
        self.queued: set[ProcessQueue] = set()  # queues that `submit` must not add, mostly because they are in the line
        self.can_wake = False  # whether a worker sleeps, and no woken worker is about to start
        self.paused = False
        self.sleepers: list[asyncio.Future[None]] = []
        self.surplus = 0  # how many workers must still park, because there are more than may take batches
        self.parked: list[asyncio.Future[None]] = []
        self._held: deque[ProcessQueue] = deque()  # the line of a paused group
        self._wake_planned = False

    def submit(self, process_queue: ProcessQueue) -> None:
        """Add a queue to the line if it has messages to hand out."""
        self.keep(process_queue)
        if not self.queues or not self.can_wake or self._wake_planned:
            return
        if len(process_queue.pending) <= TRICKLE:
            self.wake()
        else:  # one iteration of the event loop later, so that the next pulls are sent before handlers run
            self._wake_planned = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def keep(self, process_queue: ProcessQueue) -> None:
        """Add a queue like `submit`, but wake no worker: the calling worker takes the next batch itself."""
        if process_queue.pending and process_queue not in self.queued:
            self.queued.add(process_queue)
            (self._held if self.paused else self.queues).append(process_queue)

    def pause(self) -> None:
        """Do not hand out queues until `resume`."""
        if not self.paused:
            self.paused = True
            self._held.extend(self.queues)
            self.queues.clear()

    def resume(self) -> None:
        """Hand out queues again."""
        if self.paused:
            self.paused = False
            self.queues.extend(self._held)
            self._held.clear()
            if self.queues and self.can_wake:
                self.wake()

    @property
    def has_messages(self) -> bool:
        """Whether a queue has messages to hand out, also while the line is paused."""
        return any(queue.pending for queues in (self.queues, self._held) for queue in queues)

    def sort(self, rank: Callable[[Message], int]) -> None:
        """Sort a paused line so that messages of the lowest rank come first, as far as their order allows."""
        for process_queue in self._held:
            process_queue.sort(rank)
        first = {queue: rank(queue.pending[0]) for queue in self._held if queue.pending}
        self._held = deque(sorted(self._held, key=lambda queue: first.get(queue, 0)))

    def wake(self) -> None:
        """Wake one worker. Only valid if `can_wake`."""
        self.can_wake = False
        sleeper = self.sleepers.pop()
        if not sleeper.done():
            sleeper.set_result(None)

    async def rest(self) -> None:
        """Wait until there is work. Called by workers."""
        sleeper = asyncio.get_running_loop().create_future()
        self.sleepers.append(sleeper)
        self.can_wake = True
        try:
            await sleeper
        finally:
            if sleeper in self.sleepers:
                self.sleepers.remove(sleeper)
            self.can_wake = bool(self.sleepers)

    def admit(self, more: int) -> None:
        """Change by `more` how many workers may take batches; a negative number parks workers."""
        self.surplus -= more
        while self.surplus < 0 and self.parked:
            self.surplus += 1
            parked = self.parked.pop()
            if not parked.done():
                parked.set_result(None)

    async def park(self) -> None:
        """Wait until `admit`. Called by workers while there is a surplus."""
        self.surplus -= 1
        parked = asyncio.get_running_loop().create_future()
        self.parked.append(parked)
        if self.queues and self.can_wake:  # this worker parks instead of working, so wake another one
            self.wake()
        await parked

    def _wake_now(self) -> None:
        self._wake_planned = False
        if self.queues and self.can_wake:
            self.wake()
