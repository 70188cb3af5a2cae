"""The line of queues that have messages for a handler, and the workers that sleep until there are some."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.wire.messages.message import Message

TRICKLE: Final = 4  # messages that are handled sooner than a turn of the loop is worth waiting for


class Line:
    """The queues that workers take batches from, in turn.

    Most handlers need one worker only, so one is woken at a time; it wakes the next if there is more than it can take.
    """

    __slots__ = ("_held", "_wake_planned", "can_wake", "parked", "paused", "queued", "queues", "sleepers", "surplus")

    def __init__(self) -> None:
        self.queues: deque[ProcessQueue] = deque()
        self.queued: set[ProcessQueue] = set()  # those that are not to be put into the line, as they stand in it
        self.can_wake = False  # whether a worker sleeps, and none that was woken has yet to come
        self.paused = False
        self.sleepers: list[asyncio.Future[None]] = []
        self.surplus = 0  # how many workers are to park, as they are more than may take batches
        self.parked: list[asyncio.Future[None]] = []
        self._held: deque[ProcessQueue] = deque()  # the line of a paused group
        self._wake_planned = False

    def submit(self, process_queue: ProcessQueue) -> None:
        """Put a queue into the line if it has messages to hand out."""
        self.keep(process_queue)
        if not self.queues or not self.can_wake or self._wake_planned:
            return
        if len(process_queue.pending) <= TRICKLE:
            self.wake()
        else:  # one turn of the loop later, so that the next pulls leave before handlers take the loop
            self._wake_planned = True
            asyncio.get_running_loop().call_soon(self._wake_now)

    def keep(self, process_queue: ProcessQueue) -> None:
        """Put a queue into the line as `submit` does, and wake nobody: the worker that calls this comes next."""
        if process_queue.pending and process_queue not in self.queued:
            self.queued.add(process_queue)
            (self._held if self.paused else self.queues).append(process_queue)

    def pause(self) -> None:
        """Hand out no queue until `resume`."""
        if not self.paused:
            self.paused = True
            self._held.extend(self.queues)
            self.queues.clear()

    def resume(self) -> None:
        """Go on handing out."""
        if self.paused:
            self.paused = False
            self.queues.extend(self._held)
            self._held.clear()
            if self.queues and self.can_wake:
                self.wake()

    @property
    def has_messages(self) -> bool:
        """Whether a queue has messages to hand out, of a paused line too."""
        return any(queue.pending for queues in (self.queues, self._held) for queue in queues)

    def sort(self, rank: Callable[[Message], int]) -> None:
        """Have a paused line go on with the messages of the lowest rank, as far as the order of queues allows it."""
        for process_queue in self._held:
            process_queue.sort(rank)
        first = {queue: rank(queue.pending[0]) for queue in self._held if queue.pending}
        self._held = deque(sorted(self._held, key=lambda queue: first.get(queue, 0)))

    def wake(self) -> None:
        """Wake one worker, where `can_wake`."""
        self.can_wake = False
        sleeper = self.sleepers.pop()
        if not sleeper.done():
            sleeper.set_result(None)

    async def rest(self) -> None:
        """Wait until there is work; called by workers."""
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
        """Have so many more workers take batches, or fewer where it is below 0."""
        self.surplus -= more
        while self.surplus < 0 and self.parked:
            self.surplus += 1
            parked = self.parked.pop()
            if not parked.done():
                parked.set_result(None)

    async def park(self) -> None:
        """Take no batches until `admit`; called by workers, while there is a surplus of them."""
        self.surplus -= 1
        parked = asyncio.get_running_loop().create_future()
        self.parked.append(parked)
        if self.queues and self.can_wake:  # for what this one was woken, another one is to come
            self.wake()
        await parked

    def _wake_now(self) -> None:
        self._wake_planned = False
        if self.queues and self.can_wake:
            self.wake()
