"""One assignment of this member, a queue or all queues of a broker: the interface for rebalance, watchdog and status.

The release of an assignment first drains its batches in flight, for a limited time. There are two kinds of release. In
a *hand-over*, another member may wait for the queue. So the drain time is short, and the ownership decides how much
longer this member can safely keep the queue (`start_grace_period`). At the *end of the group* (`is_last`), no other
member acquires the queue before its release, so handlers get the group's shutdown timeout.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import structlog

from rmqd.consumer.assigned.request_loop import RequestLoop
from rmqd.consumer.assigned.stall_facts import StallFacts
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.consumer.health.causes import CAUSES, STUCK, Problem
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import topic_of_pop_retry

log = structlog.get_logger(__name__)


class LazyEvent:
    """Like asyncio.Event, but allocates memory only while a task waits: a group may have thousands of queues."""

    __slots__ = ("_is_set", "_on_set")

    def __init__(self) -> None:
        self._is_set = False
        self._on_set: tuple[Callable[[], object], ...] = ()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Wake the tasks in `wait`, and cancel the work of `run_until_set`."""
        self._is_set = True
        callbacks, self._on_set = self._on_set, ()
        for callback in callbacks:
            callback()

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> None:
        """Wait until `set` is called. Return at once if the event is already set."""
        if not self._is_set:
            event = asyncio.Event()
            self._on_set = (*self._on_set, event.set)
            await event.wait()

    async def run_until_set(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in this task, and cancel it when the event is set. Return when `work` has ended."""
        if self._is_set:
            work.close()
            return
        task, is_interrupted = asyncio.current_task(), False
        assert task is not None
        others = task.cancelling()

        def cancel() -> None:
            nonlocal is_interrupted
            is_interrupted = True
            task.cancel()

        self._on_set = (*self._on_set, cancel)
        try:
            await work
        except asyncio.CancelledError:
            if not is_interrupted or task.uncancel() > others:  # the caller cancelled the task, not the event
                raise
        finally:
            self._on_set = tuple(one for one in self._on_set if one is not cancel)


class ReleaseSignal:
    """The state of one assignment's release: whether it was requested, and how long it waits for handlers."""

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self.begun = LazyEvent()
        self.forced = LazyEvent()
        self.is_last = False  # whether the whole group ends, and not only this assignment
        self.until = float("inf")  # when the wait for handlers ends (monotonic)
        self._context = context
        self._message_queue = message_queue

    @property
    def cause(self) -> str:
        """The cause under which messages still in flight after the drain time are counted as duplicates."""
        return "stopped" if self.is_last else "handed_over"

    def begin(self, drain_seconds: float, *, last: bool) -> None:
        """Begin the release. Handlers get `drain_seconds` to finish their batches."""
        if not self.begun.is_set():
            self.until, self.is_last = self._context.clock.monotonic() + drain_seconds, last
            self.begun.set()

    async def drain(self, process_queues: Iterable[ProcessQueue]) -> bool:
        """Wait until these queues have no batches in flight. Returns False if the time ran out."""
        busy = [one for one in process_queues if one.is_busy]
        idle = asyncio.gather(*(one.wait_idle() for one in busy))
        force_stop = asyncio.create_task(self.forced.wait())
        try:
            await self._wait(idle, force_stop)
            if not (idle.done() or force_stop.done() or self.is_last):
                self.until += self._context.ownership.start_grace_period(self._message_queue)
                await self._wait(idle, force_stop)
        finally:
            for waiting in (force_stop, idle):
                waiting.cancel()
            await asyncio.gather(force_stop, idle, return_exceptions=True)
        if left := [one for one in busy if one.is_busy]:
            log.warning("queue.not_drained", queue=str(self._message_queue), batches=sum(one.in_flight for one in left))
        return not left

    async def _wait(self, *either: asyncio.Future[Any]) -> None:
        left = self.until - self._context.clock.monotonic()
        await self._context.clock.wait(either, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)


class Assignment(ABC):
    """Acquires a message queue, consumes it, and releases it when `release` is called.

    After `release`, `run` ends when the messages in flight are finished and committed (or acknowledged, if popped), or
    when the drain time is over. A pulled queue belongs only to this member. A popped queue may belong to other members
    too; queue id -1 means all queues of the broker.

    An assignment also reports its state, when the state last changed, its figures, and the cause of a stall.
    """

    is_popped: ClassVar[bool]
    loop: RequestLoop | None
    """The loop that fetches the messages; None until the assignment is acquired."""

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self.stall: Problem | None = None  # why messages wait without progress; set by the watchdog
        self.since = context.clock.wall()  # when the assignment entered its state, in Unix seconds
        self._state = "waiting"
        self._context = context
        self._release_signal = ReleaseSignal(context, message_queue)

    @abstractmethod
    async def run(self) -> None:
        """Acquire the queue, consume it until `release` is called, and release it."""

    @property
    def process_queues(self) -> Sequence[ProcessQueue]:
        """The caches of the queues with messages; empty until the assignment is acquired."""
        return () if self.loop is None else self.loop.process_queues

    @property
    def is_releasing(self) -> bool:
        return self._release_signal.begun.is_set()

    def release(self, drain_seconds: float, *, last: bool = False) -> None:
        """Begin the release, unless it has begun. Handlers get up to `drain_seconds`. `last`: the whole group ends."""
        self._release_signal.begin(drain_seconds, last=last)

    def force_stop(self) -> None:
        """End the drain: do not wait for running handlers."""
        self._release_signal.forced.set()

    def apply_options(self) -> int:
        """Apply changed options at once. Returns how many cached messages the new filter discards."""
        return 0 if self.loop is None else self.loop.apply_options()

    def apply_pauses(self) -> None:
        """Apply the operator's pauses and resumes."""
        if self.loop is not None:
            self.loop.apply_pauses()

    # Only pulled queues override the next five methods. The defaults are for popped queues, whose offsets brokers keep.

    def commit_offset(self) -> int | None:
        """Return the offset to commit; None before the acquisition, and for popped queues."""
        return None

    def move_to(self, offset: int) -> bool:
        """Continue at `offset` at once, after an operator's reset. Returns False for popped queues."""
        return False

    def switch_replica_if_down(self) -> None:  # noqa: B027
        """Pull from another replica of the broker if the current replica is down."""

    def restart_loop(self) -> None:  # noqa: B027
        """Restart the request loop at the same offset. Called if the watchdog found that the loop hangs."""

    async def abandon(self) -> None:  # noqa: B027
        """Commit finished messages. Called after the group has failed and all its tasks have ended."""

    # The status, for the watchdog and the group's snapshot:

    @property
    def failure(self) -> RmqdError | None:
        """The error of the last request for messages; None after a success."""
        return None if self.loop is None else self.loop.failure

    @property
    def last_iteration_at(self) -> float | None:
        """When the loop last completed an iteration (monotonic); None while a long iteration is not a problem."""
        return None

    @abstractmethod
    def progress(self) -> object:
        """Return a value that changes when the assignment makes progress. The watchdog compares consecutive values."""

    @abstractmethod
    def has_work(self) -> bool:
        """Return whether the assignment should make progress: messages wait, or it is unknown whether any wait."""

    def is_idle(self, now: float) -> bool:
        """Return whether the queue surely waits for new messages, so that checks can skip it. `now` is monotonic."""
        return False

    @abstractmethod
    def measure(self) -> Coroutine[Any, Any, None] | None:
        """Return a coroutine that queries the lag from the broker; None if pull responses already contain the lag."""

    def record_state_change(self) -> None:
        """Record the current state, and when it changed. The watchdog calls this periodically."""
        state = self._current_state()
        if state != self._state:
            self._state, self.since = state, self._context.clock.wall()

    @abstractmethod
    def snapshot(self) -> QueueSnapshot | None:
        """Return the current figures; None for a pulled queue before it is acquired.

        A pulled queue has figures earlier if another member has its lock, or if the watchdog considers it stalled.
        """

    def _figures(self) -> QueueSnapshot:
        """Return the figures that pulled and popped assignments have in common."""
        self.record_state_change()
        context, queue, process_queues = self._context, self.message_queue, self.process_queues
        stats, cached = context.stats[queue.topic], sum(one.cached_count for one in process_queues)
        waiting = sum(one.waiting_count + one.retrying for one in process_queues)
        # a pop retry topic shares the counters of the group's retry topic, so `stats.topic` is not the queue's topic
        is_pop_retry = topic_of_pop_retry(context.options.group, queue.topic) is not None
        return QueueSnapshot(
            topic=queue.without(context.options.namespace).topic if is_pop_retry else stats.topic,
            is_retry=stats.is_retry,
            broker=queue.broker_name,
            queue=queue.queue_id,
            state=self._state,
            since=self.since,
            cached=cached,
            handling=max(0, cached - waiting),
            cached_bytes=sum(one.cached_bytes for one in process_queues),
            stall=self.stall,
        )

    def explain_stall(self) -> Problem:
        """Return the cause of a stall from the current facts."""
        return self._seen().explain()

    def _seen(self) -> StallFacts:
        context, queue, process_queues, oldest = self._context, self.message_queue, self.process_queues, self._oldest()
        if self.loop is None:
            return replace(self._named(), locked_out=self.failure is None, failure=self.failure)
        calls, now = context.service.calls(), context.clock.monotonic()
        return replace(
            self._named(),
            paused=context.pauses.is_paused(queue),
            circuit=None
            if context.circuit is None
            else context.circuit.problem(context.options.group_without_namespace),
            locked_out=not context.ownership.holds(queue),
            in_place=context.options.retries_in_place,
            kept=next(filter(None, map(context.service.explain, process_queues)), None),
            failure=self.failure,
            retrying=sum(one.retrying for one in process_queues),
            in_flight=sum(one.in_flight for one in process_queues),
            pending=sum(one.waiting_count for one in process_queues),
            uncommitted=sum(len(one.uncommitted) for one in process_queues),
            oldest=""
            if oldest is None
            else f"message {oldest.msg_id} at offset {oldest.queue_offset} (retried {oldest.reconsume_times} times)",
            oldest_id="" if oldest is None else oldest.msg_id,
            call_seconds=max(
                (now - call.started for call in calls if call.process_queue in process_queues), default=None
            ),
            slots=context.service.concurrency,
            busy_slots=len(calls),
            longest_call_seconds=max((now - call.started for call in calls), default=0.0),
        )

    def _named(self) -> StallFacts:
        """Return StallFacts with only the names of broker, queue, group and topic."""
        options = self._context.options
        queue, group = self.message_queue.without(options.namespace), options.group_without_namespace
        return StallFacts(broker=queue.broker_name, queue_id=queue.queue_id, group=group, topic=queue.topic)

    def _current_state(self) -> str:
        loop, process_queues = self.loop, self.process_queues
        if (state := self._cannot_be_consumed()) is not None:
            return state
        if loop is None:
            return "waiting"
        if loop.hold_reason is not None:
            return "flow_controlled"
        if any(one.retrying for one in process_queues):
            return "retrying"
        if any(one.in_flight or one.pending for one in process_queues):
            return "handling"
        return "pulling" if loop.has_backlog else "waiting"

    def _cannot_be_consumed(self) -> str | None:
        if self.stall is not None and STUCK in CAUSES[self.stall.cause].marks:
            return "stuck"
        if self._context.pauses.is_paused(self.message_queue) or self._waits_for_circuit():
            return "paused"
        return None if self._context.ownership.holds(self.message_queue) else "locked_out"

    def _waits_for_circuit(self) -> bool:
        """Return whether messages wait because the circuit is not closed."""
        circuit = self._context.circuit
        return circuit is not None and circuit.state != "closed" and any(one.pending for one in self.process_queues)

    def _oldest(self) -> Message | None:
        """Return the unfinished message that was stored first; None if no cache has one."""
        unfinished = [message for one in self.process_queues if (message := one.oldest()) is not None]
        return min(unfinished, key=lambda message: message.store_timestamp, default=None)

    def _lag_seconds(self, lag: int | None, last_stored_ms: int = 0) -> float | None:
        """Return the age of the oldest unfinished message, or else the age of `last_stored_ms`. None if unknown."""
        if lag == 0:
            return 0.0
        oldest = self._oldest()
        stored_ms = last_stored_ms if oldest is None else oldest.store_timestamp
        return max(0.0, self._context.clock.wall() - stored_ms / 1000) if stored_ms else None
