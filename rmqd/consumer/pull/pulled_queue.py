"""The state of one pulled queue, and its waits between pulls.

A queue is not pulled while it is paused, while its cache is full, while messages at the next offset are still in
flight, or while an operator must act. A broker reports an operator's reset only in the response to a pull. So a waiting
queue is probed periodically: one message is pulled and discarded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

import structlog

from rmqd.codes import ResponseCode
from rmqd.consumer.assigned.request_loop import RequestLoop
from rmqd.consumer.cache.flow_control import FlowControlReason, count_flow_control, exceeded_threshold
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.pull.pull_request import FAILED_PULL_PAUSE_SECONDS, OFFSET_MOVED_CODE, PullRequest
from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import RmqdError
from rmqd.runtime.clock import wait_within
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

RECHECK_INTERVAL_SECONDS: Final = 1.0
PROBE_INTERVAL_SECONDS: Final = 10.0  # maximum delay of an operator's reset at a waiting queue

FOUND_CODE: Final = int(ResponseCode.SUCCESS)
NOTHING_FOUND_CODES: Final = frozenset((int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY)))


class PulledQueue(RequestLoop):
    """The state and cache of a queue. `process_queue` is replaced when an operator resets the offset."""

    def __init__(self, context: GroupContext, message_queue: MessageQueue, offset: int) -> None:
        super().__init__(context, message_queue)
        options, topic = context.options, message_queue.topic
        self.process_queue = self._cache(offset, context.stats[topic])
        self.replaced_queues: list[ProcessQueue] = []  # earlier caches of this queue with batches still in flight
        self.request = PullRequest(context.client, options.group, message_queue, context.subscriptions[topic])
        self.stuck: Problem | None = None  # why pulling stopped until an operator acts
        self.waits_for_rate = False
        self.max_offset: int | None = None
        self.end_queried_at = 0.0  # when the queue's end was last queried outside pulls
        self.checked_at = self._probed_at = self.last_request_at

    @property
    def process_queues(self) -> tuple[ProcessQueue]:
        return (self.process_queue,)

    @property
    def has_backlog(self) -> bool:
        return self.max_offset is not None and self.max_offset > self.process_queue.next_offset

    @abstractmethod
    async def on_offset_moved(self, reply: RemotingCommand) -> None:
        """Handle the response PULL_OFFSET_MOVED: the broker refuses the offset and offers another. Raises RmqdError."""

    def restart_at(self, offset: int, because: str) -> None:
        """Drop the cache and pull from `offset` on.

        Results of messages in flight are ignored, and these messages count as duplicates with the cause `because`.
        """
        process_queue = self.process_queue
        process_queue.drop(because)
        self.replaced_queues = [former for former in (*self.replaced_queues, process_queue) if former.is_busy]
        self.stuck = None
        self.process_queue = self._cache(offset, process_queue.stats)
        self.cache_created_at = self._context.clock.wall()
        self.apply_pauses()

    def _cache(self, offset: int, stats: TopicStats) -> ProcessQueue:
        return self._context.create_cache(self._message_queue, offset, stats, self._context.options.namespace)

    async def probe(self, offset: int | None = None) -> None:
        """Pull one message without waiting, and discard it: the response would report an operator's reset.

        If `offset` is given, PULL_OFFSET_MOVED is ignored unless it reports a reset.
        """
        self._probed_at = self._context.clock.monotonic()
        asked = self.process_queue.next_offset if offset is None else offset
        try:
            reply = await self.request.pull(asked, 1)
            if (reset_to := self.request.reported_reset(asked, reply)) is not None:
                self.request.reset_to = reset_to
            elif reply.code == FOUND_CODE or reply.code in NOTHING_FOUND_CODES:
                self.max_offset = PullMessageResponseHeader.from_ext_fields(reply.ext_fields).max_offset
            elif reply.code == OFFSET_MOVED_CODE and offset is None:
                await self.on_offset_moved(reply)
        except RmqdError as error:
            log.debug("probe.failed", queue=str(self._message_queue), error=str(error))

    async def wait_after_error(self) -> None:
        """Wait before the next pull for as long as after an error."""
        await self._context.clock.sleep(FAILED_PULL_PAUSE_SECONDS)

    async def wait_for_operator(self) -> None:
        """Wait PROBE_INTERVAL_SECONDS. The caller then checks whether an operator has reset the queue."""
        self.checked_at = self._context.clock.monotonic()
        await self._context.clock.sleep(PROBE_INTERVAL_SECONDS)

    async def wait_at(self, offset: int) -> None:
        """Wait as after an error. Every PROBE_INTERVAL_SECONDS, also probe the queue at `offset`: see `probe`."""
        self.checked_at = self._context.clock.monotonic()
        await self.wait_after_error()
        if self._context.clock.monotonic() - self._probed_at >= PROBE_INTERVAL_SECONDS:
            await self.probe(offset)

    async def _wait_for_rate(self) -> None:
        self.waits_for_rate = True
        try:
            await self._context.rate_limit.wait()
        finally:
            self.waits_for_rate = False

    def _hold_back(self) -> FlowControlReason | None:
        if self._context.paused or self.process_queue.is_paused:
            return "paused"
        return exceeded_threshold(self.process_queue, self._context.thresholds)

    async def _wait_for_relief(self, reason: FlowControlReason) -> None:
        """Wait while `reason` prevents pulls. Counts the reason once in the statistics."""
        process_queue = self.process_queue
        count_flow_control(process_queue, reason, self._context.thresholds)

        def applies() -> bool:
            is_held = self._hold_back() == reason
            process_queue.is_full = is_held and reason != "paused"
            if process_queue.cannot_fill_batch:
                self._context.service.submit(process_queue)
            return is_held

        await self._wait_while(applies, reason)
        process_queue.is_full = False

    async def _wait_while(self, is_held: Callable[[], bool], reason: FlowControlReason | None = None) -> None:
        """Wait while `is_held()` is True and no operator resets the queue. The time is counted for `reason`."""
        process_queue, clock = self.process_queue, self._context.clock
        self.hold_reason = reason
        self._probed_at = since = clock.monotonic()
        try:
            while self.process_queue is process_queue and self.request.reset_to is None and is_held():
                self.checked_at = clock.monotonic()
                if self.checked_at - self._probed_at >= PROBE_INTERVAL_SECONDS:
                    await self.probe()
                    continue
                relief = self._context.not_paused.wait() if self._context.paused else process_queue.wait_for_room()
                await wait_within(clock, RECHECK_INTERVAL_SECONDS, relief)
                since = self._count_hold(process_queue, reason, since)
        finally:
            self._count_hold(process_queue, reason, since)
            self.hold_reason = None

    def _count_hold(self, process_queue: ProcessQueue, reason: FlowControlReason | None, since: float) -> float:
        now = self._context.clock.monotonic()
        if reason is not None:
            process_queue.stats.add_held_seconds(reason, now - since, process_queue.oldest())
        return now
