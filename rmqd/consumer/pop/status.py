"""The status of a popped assignment: state, current figures, and the reason of a stall."""

from __future__ import annotations

from dataclasses import replace

import structlog

from rmqd.client.api.admin import consume_stats
from rmqd.consumer.assigned.status import AssignmentStatus
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.loop import PopLoop
from rmqd.consumer.stats.snapshot import QueueSnapshot
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.pop import ANY_QUEUE

log = structlog.get_logger(__name__)


class PopStatus(AssignmentStatus):
    """The state of a popped assignment, and the time of its last change."""

    loop: PopLoop

    def __init__(self, context: GroupContext, message_queue: MessageQueue, loop: PopLoop) -> None:
        super().__init__(context, message_queue)
        self.loop = loop
        self._lag: int | None = None  # unacknowledged messages according to the broker
        self._moved_at = loop.moved_at

    @property
    def _is_failing(self) -> bool:
        return self.loop.failure is not None and not self.loop.failure.is_reported

    def progress(self) -> object:
        """Return when messages were last finished, or arrived while none waited. It stops while pops fail."""
        if not self._is_failing:
            self._moved_at = self.loop.moved_at
        return self._moved_at

    def has_work(self) -> bool:
        """Whether messages wait for handlers or are in flight, or pops fail."""
        return self._is_failing or self.loop.unacknowledged > 0

    def snapshot(self) -> QueueSnapshot | None:
        """Return the known values. Position and committed offset are missing: brokers keep them for popped queues."""
        snapshot = super().snapshot()
        assert snapshot is not None
        return replace(snapshot, lag=self._lag, lag_seconds=self._lag_seconds(self._lag), popped=True)

    async def measure(self) -> None:
        """Query how many messages of the queue the group has not acknowledged."""
        client, message_queue = self._context.client, self._message_queue
        address = client.routes.address(message_queue.broker_name)
        if address is None:
            return
        try:
            stats = await consume_stats(client.remoting, address, self._context.options.group, topic=self._asked_topic)
        except RmqdError as error:
            log.debug("lag.unknown", queue=str(message_queue), error=str(error))
            return
        self._lag = sum(
            max(0, offsets.broker_offset - offsets.consumer_offset)
            for queue, offsets in stats.offset_table.items()
            if self._is_ours(queue)
        )

    @property
    def _asked_topic(self) -> str:
        """The topic of the query; empty for all topics with offsets of the group."""
        return self._message_queue.topic

    def _is_ours(self, queue: MessageQueue) -> bool:
        ours = self._message_queue
        return queue.topic == ours.topic and ours.queue_id in (ANY_QUEUE, queue.queue_id)
