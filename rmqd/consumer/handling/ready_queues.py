"""The queues with messages for a handler, and the workers that sleep until there are messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.handler_api.batch import Batch
from rmqd.runtime.clock import Clock
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message


class ReadyQueues:
    """The queues that workers take batches from, in turn.

    Most handlers need only one worker, so one worker is woken at a time. It wakes the next worker if work is left.
    """

    def __init__(self) -> None:
        self.queues: deque[ProcessQueue] = deque()
        self.not_to_add: set[ProcessQueue] = set()  # queues that `submit` must not add; most of them are ready already
        self.can_wake = False  # whether a worker sleeps, and no woken worker is about to start
        self.paused = False
        # futures of workers, or their starters
        self.sleeping_workers: list[asyncio.Future[None] | Callable[[], None]] = []
        self.excess_workers = 0  # how many workers must still park, because too many are running
        self.parked_workers: list[asyncio.Future[None]] = []  # futures of workers above the concurrency limit
        self._held: deque[ProcessQueue] = deque()  # the ready queues of a paused group
        self._on_wake: asyncio.Future[None] | None = None  # the future that wait_until_woken awaits

    def submit(self, process_queue: ProcessQueue) -> None:
        """Add a queue if it has messages to hand out.

        The woken worker starts in the event loop's next turn, so the next pulls are sent before handlers run.
        """
        self.add_without_waking(process_queue)
        if self.queues and self.can_wake:
            self.wake()

    def add_without_waking(self, process_queue: ProcessQueue) -> None:
        """Add a queue without waking a worker, because the calling worker takes the next batch itself."""
        if process_queue.pending and process_queue not in self.not_to_add:
            self.not_to_add.add(process_queue)
            (self._held if self.paused else self.queues).append(process_queue)

    def pause(self) -> None:
        """Do not hand out queues until `resume`."""
        if not self.paused:
            self.paused = True
            self._held.extend(self.queues)
            self.queues.clear()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.queues.extend(self._held)
            self._held.clear()
            if self.queues and self.can_wake:
                self.wake()

    @property
    def has_messages(self) -> bool:
        """Whether a ready queue has messages to hand out, also while the group is paused."""
        return any(queue.pending for queues in (self.queues, self._held) for queue in queues)

    def sort_paused(self, rank: Callable[[Message], int]) -> None:
        """Sort the queues of a paused group, and their messages if allowed, so that the lowest rank comes first."""
        for process_queue in self._held:
            process_queue.sort_pending(rank)
        first = {queue: rank(queue.pending[0]) for queue in self._held if queue.pending}
        self._held = deque(sorted(self._held, key=lambda queue: first.get(queue, 0)))

    def put_oldest_first(self) -> None:
        """Put a later queue first if its next message was popped earlier. Remove later queues without messages."""
        queues = self.queues
        for _ in range(len(queues) - 1):
            if not queues[1].pending:
                self.not_to_add.discard(queues[1])
                del queues[1]
            elif queues[1].next_block_number() < queues[0].next_block_number():
                queues.rotate(-1)
            else:
                break

    def wake(self) -> None:
        """Wake one worker. Only valid if `can_wake`."""
        self.can_wake = False
        if self._on_wake is not None and not self._on_wake.done():
            self._on_wake.set_result(None)
        sleeper = self.sleeping_workers.pop()
        if callable(sleeper):
            sleeper()
            asyncio.get_running_loop().call_soon(self._note_started)
        elif not sleeper.done():
            sleeper.set_result(None)

    def add_workers(self, numbers: range, start: Callable[[int], None]) -> None:
        """Add sleeping workers. `start` starts a worker when it is first woken: most groups never need all workers."""
        context = copy_context()  # the code that wakes a worker may belong to another group
        self.sleeping_workers[:0] = [partial(context.run, start, number) for number in reversed(numbers)]
        self._note_started()

    def remove_workers(self) -> None:
        """Forget the sleeping workers, so that none is woken or started any more."""
        self.sleeping_workers.clear()
        self.can_wake = False

    def _note_started(self) -> None:
        self.can_wake = bool(self.sleeping_workers)
        if self.queues and self.can_wake:
            self.wake()

    async def wait_for_work(self) -> None:
        """Wait until there is work. Called by workers."""
        sleeper = asyncio.get_running_loop().create_future()
        self.sleeping_workers.append(sleeper)
        self.can_wake = True
        try:
            await sleeper
        except asyncio.CancelledError:
            if sleeper in self.sleeping_workers:
                self.sleeping_workers.remove(sleeper)
            raise
        finally:
            self.can_wake = bool(self.sleeping_workers)

    @property
    def idle_workers(self) -> int:
        """How many workers wait for work or are parked."""
        return len(self.sleeping_workers) + len(self.parked_workers)

    async def wait_until_woken(self) -> None:
        """Wait until a worker is woken. Supports one waiter at a time."""
        self._on_wake = asyncio.get_running_loop().create_future()
        try:
            await self._on_wake
        finally:
            self._on_wake = None

    def admit_workers(self, more: int) -> None:
        """Let `more` additional workers take batches. If `more` is negative, park workers instead."""
        self.excess_workers -= more
        while self.excess_workers < 0 and self.parked_workers:
            self.excess_workers += 1
            parked = self.parked_workers.pop()
            if not parked.done():
                parked.set_result(None)

    async def wait_until_admitted(self) -> None:
        """Park the calling worker until `admit_workers` admits it. Called while too many workers are running."""
        self.excess_workers -= 1
        parked = asyncio.get_running_loop().create_future()
        self.parked_workers.append(parked)
        if self.queues and self.can_wake:  # this worker parks instead of working, so wake another one
            self.wake()
        try:
            await parked
        except asyncio.CancelledError:
            if parked in self.parked_workers:  # not admitted: a handler of an earlier call cancelled the worker's task
                self.parked_workers.remove(parked)
                self.excess_workers += 1
            raise


MakeBatch = Callable[[list[Message], MessageQueue], Batch]


class BatchingQueues(ReadyQueues):
    """Ready queues that wait for full batches.

    A queue is ready when its messages fill a batch, when they can never fill a batch, or when its oldest message has
    waited for `wait_seconds`. Waits use the wall clock. If the clock is set back, a queue waits at most twice as long.
    """

    def __init__(self, size: int, wait_seconds: float, clock: Clock) -> None:
        super().__init__()
        self._size = size
        self._wait = wait_seconds
        self._clock = clock
        # queue -> (`put_count`, time) of each arrival of messages, starting with the oldest waiting message
        self._arrivals: dict[ProcessQueue, deque[tuple[int, float]]] = {}
        self._armed: set[ProcessQueue] = set()  # queues with a running timer
        self._ripe: set[ProcessQueue] = set()  # queues whose oldest message has waited long enough

    def submit(self, process_queue: ProcessQueue) -> None:
        """Add a queue if it has a batch to hand out. Otherwise let it wait."""
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
            self._hold_for_batch(process_queue)

    def halting_make(
        self, process_queue: ProcessQueue, make: MakeBatch, halt: Callable[[ProcessQueue], None]
    ) -> MakeBatch:
        """Return a function like `make` that also halts the queue once the remaining messages do not fill a batch."""

        def made(messages: list[Message], message_queue: MessageQueue) -> Batch:
            self._ripe.discard(process_queue)
            if not self._has_batch(process_queue):
                if process_queue in self.queues:
                    self.queues.remove(process_queue)
                    self.not_to_add.discard(process_queue)
                halt(process_queue)
                self._hold_for_batch(process_queue)
            return make(messages, message_queue)

        return made

    def _has_batch(self, process_queue: ProcessQueue) -> bool:
        is_ripe = process_queue in self._ripe or process_queue.cannot_fill_batch
        return is_ripe or len(process_queue.pending) >= self._size

    def _hold_for_batch(self, process_queue: ProcessQueue) -> None:
        if process_queue.hold_until_batch_is_full() and process_queue not in self._armed:
            self._armed.add(process_queue)
            self._clock.call_later(self._left(process_queue), self._check_due, process_queue)

    def _check_due(self, process_queue: ProcessQueue) -> None:
        """Called by the timer when the message that was the oldest at the timer's start has waited long enough."""
        self._armed.discard(process_queue)
        process_queue.is_batching = False
        if not process_queue.pending:
            del self._arrivals[process_queue]
        elif self._left(process_queue) > 0:
            self._hold_for_batch(process_queue)
        else:
            self._ripe.add(process_queue)
            super().submit(process_queue)

    def _left(self, process_queue: ProcessQueue) -> float:
        """Return the seconds until the oldest waiting message has waited long enough."""
        self._forget_taken(process_queue)
        arrived_at = self._arrivals[process_queue][0][1]
        return min(max(arrived_at + self._wait - self._clock.wall(), 0.0), self._wait)

    def _forget_taken(self, process_queue: ProcessQueue) -> None:
        """Forget the arrivals whose messages were all taken, except the last arrival."""
        arrivals, before = self._arrivals[process_queue], process_queue.put_count - len(process_queue.pending)
        while len(arrivals) > 1 and arrivals[0][0] <= before:
            arrivals.popleft()

    def _forget_dropped(self) -> None:
        """Forget queues that this member no longer owns. A timer still needs the queues in `_armed`."""
        for gone in [one for one in self._arrivals if one.dropped and one not in self._armed]:
            del self._arrivals[gone]
            self._ripe.discard(gone)


def create_ready_queues(options: ConsumerOptions, clock: Clock) -> tuple[ReadyQueues, BatchingQueues | None]:
    """Return the ready queues, and the same object again if it waits for full batches, otherwise None."""
    size, wait = options.consume_message_batch_max_size, options.consume_message_batch_max_wait_seconds
    if size == 1 or not wait:
        return ReadyQueues(), None
    batching = BatchingQueues(size, wait, clock)
    return batching, batching
