"""What a popped assignment tells about itself: its state, and the figures of that moment."""

from __future__ import annotations

import structlog

from rmqd.client.api.admin import consume_stats
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.loop import PopLoop
from rmqd.consumer.stats.problem import STUCK_CAUSES, Problem
from rmqd.consumer.stats.snapshot import QueueSnapshot
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.pop import ANY_QUEUE

log = structlog.get_logger(__name__)


class PopStatus:
    """The state of an assignment, and since when. Its queue is -1 where it is any queue of a broker."""

    def __init__(self, context: GroupContext, loop: PopLoop, place: MessageQueue) -> None:
        self.stall: Problem | None = None  # as the watchdog found it
        self.since = context.clock.wall()  # Unix seconds; when it came into its state
        self.lag: int | None = None  # messages that are not acknowledged, as the broker counts them
        self._context = context
        self._loop = loop
        self._place = place
        self._state = "waiting"

    def tick(self) -> None:
        """Note when the state changed; called every second or so."""
        state = self._current_state()
        if state != self._state:
            self._state, self.since = state, self._context.clock.wall()

    def snapshot(self) -> QueueSnapshot:
        """What is known of it. There is no position and no committed offset: brokers keep those of popped queues."""
        self.tick()
        queues = self._loop.queues.values()
        oldest = [message.store_timestamp for queue in queues if (message := queue.oldest()) is not None]
        cached = sum(queue.cached_count for queue in queues)
        waiting = sum(len(queue.pending) + len(queue.paused) + queue.retrying for queue in queues)
        stats = self._context.stats[self._place.topic]
        lag_seconds = max(0.0, self._context.clock.wall() - min(oldest) / 1000) if oldest else None
        return QueueSnapshot(
            topic=stats.topic,
            is_retry=stats.is_retry,
            broker=self._place.broker_name,
            queue=self._place.queue_id,
            state=self._state,
            since=self.since,
            committed=None,
            max=None,
            lag=self.lag,
            lag_seconds=0.0 if self.lag == 0 else lag_seconds,
            cached=cached,
            handling=max(0, cached - waiting),
            cached_bytes=sum(queue.cached_bytes for queue in queues),
            span=0,
            position=None,
            last_commit=None,
            stall=self.stall,
            popped=True,
        )

    async def measure(self) -> None:
        """Ask the broker how far the group is."""
        client, place = self._context.client, self._place
        address = client.routes.address(place.broker_name)
        if address is None:
            return
        try:
            stats = await consume_stats(client.remoting, address, self._context.options.group, topic=place.topic)
        except RmqdError as error:
            log.debug("lag.unknown", queue=str(place), error=str(error))
            return
        own = [
            max(0, offsets.broker_offset - offsets.consumer_offset)
            for queue, offsets in stats.offset_table.items()
            if queue.topic == place.topic and place.queue_id in (ANY_QUEUE, queue.queue_id)
        ]
        self.lag = sum(own)

    def _current_state(self) -> str:
        loop = self._loop
        if self.stall is not None and self.stall.cause in STUCK_CAUSES:
            return "stuck"
        if self._context.paused or loop.is_paused:
            return "paused"
        if loop.held_by is not None:
            return "flow_controlled"
        if any(queue.retrying for queue in loop.queues.values()):
            return "retrying"
        if any(queue.in_flight or queue.pending for queue in loop.queues.values()):
            return "handling"
        return "pulling" if loop.rest else "waiting"
