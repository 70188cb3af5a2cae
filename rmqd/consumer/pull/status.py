"""What one owned queue tells about itself: its state, and the figures of that moment."""

from __future__ import annotations

from dataclasses import replace

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.loop import PullLoop
from rmqd.consumer.stats.problem import STUCK_CAUSES, Problem
from rmqd.consumer.stats.snapshot import QueueSnapshot
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import topic_of_pop_retry


class QueueStatus:
    """The state of a queue, and since when. The loop that it is asked about is None until the queue was taken over."""

    def __init__(self, context: GroupContext, queue: MessageQueue) -> None:
        self.stall: Problem | None = None  # as the watchdog found it
        self.since = context.clock.wall()  # Unix seconds; when the queue came into its state
        self._context = context
        self._queue = queue
        self._state = "waiting"

    def tick(self, loop: PullLoop | None) -> None:
        """Note when the queue's state changed; called every second or so."""
        state = self._current_state(loop)
        if state != self._state:
            self._state, self.since = state, self._context.clock.wall()

    def snapshot(self, loop: PullLoop | None) -> QueueSnapshot | None:
        """What is known of the queue; None until it was taken over, unless that takes too long."""
        if loop is None:
            is_known = self.stall is not None or not self._context.ownership.holds(self._queue)
            return self._bare_snapshot(loop) if is_known else None
        queue, store = loop.process_queue, self._context.store
        position = queue.commit_offset()
        lag = None if loop.max_offset is None else max(0, loop.max_offset - position)
        return replace(
            self._bare_snapshot(loop),
            committed=store.committed.get(self._queue),
            max=loop.max_offset,
            lag=lag,
            lag_seconds=self._lag_seconds(queue, lag),
            cached=queue.cached_count,
            handling=max(0, queue.cached_count - len(queue.pending) - len(queue.paused) - queue.retrying),
            cached_bytes=queue.cached_bytes,
            span=queue.span(),
            position=queue.next_offset,
            last_commit=store.committed_at.get(self._queue),
            pulled_from=loop.request.address,
            at_slave=not loop.request.at_master,
        )

    def _current_state(self, loop: PullLoop | None) -> str:
        if loop is None:
            return self._cannot_be_consumed() or "waiting"
        queue = loop.process_queue
        if loop.stuck is not None:
            return "stuck"
        if (state := self._cannot_be_consumed()) is not None:
            return state
        if loop.held_by is not None:
            return "flow_controlled"
        if queue.retrying:
            return "retrying"
        if queue.in_flight or queue.pending:
            return "handling"
        behind = loop.max_offset is not None and loop.max_offset > queue.next_offset
        return "pulling" if behind else "waiting"

    def _cannot_be_consumed(self) -> str | None:
        if self.stall is not None and self.stall.cause in STUCK_CAUSES:
            return "stuck"
        if self._context.pauses.hold(self._queue):
            return "paused"
        return None if self._context.ownership.holds(self._queue) else "locked_out"

    def _bare_snapshot(self, loop: PullLoop | None) -> QueueSnapshot:
        """What can be told of a queue that is not taken over yet."""
        self.tick(loop)
        context, queue = self._context, self._queue
        stats = context.stats[queue.topic]
        # a pop retry topic counts as the group's retry topic does, and has a queue of the same number
        is_pop_retry = topic_of_pop_retry(context.options.group, queue.topic) is not None
        return QueueSnapshot(
            topic=queue.without(context.options.namespace).topic if is_pop_retry else stats.topic,
            is_retry=stats.is_retry,
            broker=self._queue.broker_name,
            queue=self._queue.queue_id,
            state=self._state,
            since=self.since,
            committed=None,
            max=None,
            lag=None,
            lag_seconds=None,
            cached=0,
            handling=0,
            cached_bytes=0,
            span=0,
            position=None,
            last_commit=None,
            stall=self.stall,
        )

    def _lag_seconds(self, queue: ProcessQueue, lag: int | None) -> float | None:
        """Age of the oldest message that waits; with none cached, that of the last one seen."""
        if lag == 0:
            return 0.0
        oldest = queue.oldest()
        stored_ms = queue.last_store_timestamp if oldest is None else oldest.store_timestamp
        return max(0.0, self._context.clock.wall() - stored_ms / 1000) if stored_ms else None
