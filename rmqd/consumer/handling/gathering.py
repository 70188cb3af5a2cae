"""The line of a group that waits for full batches (`consume_message_batch_max_wait`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rmqd.clock import Clock
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.line import Line
from rmqd.consumer.options import ConsumerOptions
from rmqd.handler_api import Batch
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

Make = Callable[[list[Message], MessageQueue], Batch]


class GatheringLine(Line):
    """Adds a queue only when its messages fill a batch, or when the oldest message has waited long enough.

    Times are wall-clock times, which tests can shift. If the clock is set back, a queue waits at most twice as long.
    """

    __slots__ = ("_armed", "_arrivals", "_clock", "_ripe", "_size", "_wait")

    def __init__(self, size: int, wait_seconds: float, clock: Clock) -> None:
        super().__init__()
        self._size = size
        self._wait = wait_seconds
        self._clock = clock
        # for each queue, (messages so far, time) at each arrival, starting with the oldest waiting message
        self._arrivals: dict[ProcessQueue, deque[tuple[int, float]]] = {}
        self._armed: set[ProcessQueue] = set()  # queues with a running timer
        self._ripe: set[ProcessQueue] = set()  # queues whose oldest message has waited long enough

    def submit(self, process_queue: ProcessQueue) -> None:
        """Add a queue to the line if it has a batch to hand out. Otherwise let it wait."""
        if process_queue not in self._arrivals:
            self._forget_dropped()
            self._arrivals[process_queue] = deque()
        arrivals = self._arrivals[process_queue]
        if not arrivals or arrivals[-1][0] != process_queue.put_count:
            arrivals.append((process_queue.put_count, self._clock.wall()))
            self._forget_taken(process_queue)
        if self._has_batch(process_queue):
            super().submit(process_queue)
        else:
            self._gather(process_queue)

    def making(self, process_queue: ProcessQueue, make: Make, halt: Callable[[ProcessQueue], None]) -> Make:
        """Return a `make` that also halts the turns at the queue when the remaining messages do not fill a batch."""

        def made(messages: list[Message], message_queue: MessageQueue) -> Batch:
            self._ripe.discard(process_queue)
            if not self._has_batch(process_queue):
                if process_queue in self.queues:
                    self.queues.remove(process_queue)
                    self.queued.discard(process_queue)
                halt(process_queue)
                self._gather(process_queue)
            return make(messages, message_queue)

        return made

    def _has_batch(self, process_queue: ProcessQueue) -> bool:
        return len(process_queue.pending) >= self._size or process_queue in self._ripe

    def _gather(self, process_queue: ProcessQueue) -> None:
        if process_queue.gather() and process_queue not in self._armed:
            self._armed.add(process_queue)
            self._clock.call_later(self._left(process_queue), self._look, process_queue)

    def _look(self, process_queue: ProcessQueue) -> None:
        """Called when the oldest message at the timer's start has waited long enough, if it is still pending."""
        self._armed.discard(process_queue)
        process_queue.end_gathering()
        if not process_queue.pending:
            del self._arrivals[process_queue]
        elif self._left(process_queue) > 0:
            self._gather(process_queue)
        else:
            self._ripe.add(process_queue)
            super().submit(process_queue)

    def _left(self, process_queue: ProcessQueue) -> float:
        """Return the seconds until the oldest waiting message has waited long enough."""
        self._forget_taken(process_queue)
        arrived_at = self._arrivals[process_queue][0][1]
        return min(max(arrived_at + self._wait - self._clock.wall(), 0.0), self._wait)

    def _forget_taken(self, process_queue: ProcessQueue) -> None:
        """Forget the arrival times of messages that were taken. The last one is kept."""
        arrivals, before = self._arrivals[process_queue], process_queue.put_count - len(process_queue.pending)
        while len(arrivals) > 1 and arrivals[0][0] <= before:
            arrivals.popleft()

    def _forget_dropped(self) -> None:
        """Forget queues that this member no longer owns. A timer still needs the queues in `_armed`."""
        for gone in [one for one in self._arrivals if one.dropped and one not in self._armed]:
            del self._arrivals[gone]
            self._ripe.discard(gone)


def line_of(options: ConsumerOptions, clock: Clock) -> tuple[Line, GatheringLine | None]:
    """Return the group's line, twice if it waits for full batches. A batch of one message is always full."""
    size, wait = options.consume_message_batch_max_size, options.consume_message_batch_max_wait_seconds
    if size == 1 or not wait:
        return Line(), None
    gathering = GatheringLine(size, wait, clock)
    return gathering, gathering
