"""Flow control: the limits that stop the pulls of a queue, and a group's limit of messages per second."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Literal

import structlog

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.runtime.clock import Clock, wait_within
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

UNLIMITED_SPAN: Final = 2**63  # for orderly queues: they finish messages in order, so finished ones cannot accumulate
LOG_EVERY_NTH_TIME: Final = 1000  # Java: queueFlowControlTimes % 1000

FlowControlReason = Literal["count", "size", "span", "paused"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits of one queue's cache: messages, bytes, and the span of their offsets.

    A pull is sent only while no threshold is exceeded, so a cache exceeds a threshold by at most one response.
    """

    count: int
    size_bytes: int
    span: int

    @classmethod
    def per_queue(cls, options: ConsumerOptions, owned_queues: int) -> Thresholds:
        """Return the thresholds for each of `owned_queues`. Thresholds per topic are divided among them, as in Java."""
        count, size = options.pull_threshold_for_queue, options.pull_threshold_size_for_queue_bytes
        if owned_queues and options.pull_threshold_for_topic != -1:
            count = max(1, options.pull_threshold_for_topic // owned_queues)
        if owned_queues and options.pull_threshold_size_for_topic_bytes != -1:
            size = max(1, options.pull_threshold_size_for_topic_bytes // owned_queues)
        return cls(count, size, UNLIMITED_SPAN if options.keeps_queue_order else options.consume_concurrently_max_span)


def exceeded_threshold(process_queue: ProcessQueue, thresholds: Thresholds) -> FlowControlReason | None:
    """Return the threshold that blocks the next pull, or None. Thresholds are checked in the same order as in Java."""
    if process_queue.cached_count > thresholds.count:
        return "count"
    if process_queue.cached_bytes > thresholds.size_bytes:
        return "size"
    # To save time, compute the exact span only if the range from the first cached offset to the next pull is too large.
    blocks = process_queue.blocks
    pulled = process_queue.next_offset - 1 - blocks[0].messages[0].queue_offset if blocks else 0
    if pulled > thresholds.span and process_queue.span() > thresholds.span:
        return "span"
    # Also limit the finished messages above the commit offset, because they would be handled again if the process died.
    # `span` does not count all of them: it ends at the last block that has an unfinished message.
    return "span" if process_queue.finished_since_first_block() > thresholds.span else None


def count_flow_control(process_queue: ProcessQueue, reason: FlowControlReason, thresholds: Thresholds) -> None:
    """Count that a queue is not pulled because of `reason`. If a threshold is the reason, log it occasionally."""
    oldest = process_queue.oldest()
    times = process_queue.stats.count_held_back(reason, oldest)
    if reason != "paused" and oldest is not None:
        log_flow_control(
            times,
            process_queue.message_queue,
            reason,
            threshold={"count": thresholds.count, "size": thresholds.size_bytes, "span": thresholds.span}[reason],
            min_offset=oldest.queue_offset,
            max_offset=oldest.queue_offset + process_queue.span(),
            count=process_queue.cached_count,
            size_bytes=process_queue.cached_bytes,
        )


def log_flow_control(times: int, queue: MessageQueue, reason: FlowControlReason, **cache: int) -> None:
    """Log that a queue is not pulled, if `times` is 1, 1001, 2001 and so on. `cache` has the logged figures.

    Java counts an attempt to pull every 50 ms. rmqd counts only once until the queue is pulled again.
    """
    if times % LOG_EVERY_NTH_TIME == 1:
        log.warning("queue.flow_controlled", queue=str(queue), reason=reason, **cache, times=times)


class RateLimit:
    """Spaces pulls so that on average at most `per_second` messages arrive; 0 disables the limit.

    A pull is charged after its response, because only the response shows how many messages arrived.
    """

    def __init__(self, per_second: float, clock: Clock) -> None:
        self.per_second = per_second
        self._clock = clock
        self._free_at = 0.0
        self._changed = asyncio.Event()

    def change_rate(self, per_second: float) -> None:
        """Apply another limit at once. The remaining pause, also of a current `wait`, is converted to the new rate."""
        if per_second == self.per_second:
            return
        now = self._clock.monotonic()
        owed = max(0.0, self._free_at - now) * self.per_second
        self.per_second = per_second
        self._free_at = now + owed / per_second if per_second else now
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Return when another pull may be sent."""
        while self.per_second and (delay := self._free_at - self._clock.monotonic()) > 0:
            await wait_within(self._clock, delay, self._changed.wait())

    def charge(self, messages: int) -> None:
        """Charge the messages of a response, so that the next pull waits until the rate allows it."""
        if self.per_second:
            self._free_at = max(self._free_at, self._clock.monotonic()) + messages / self.per_second

    def batch_limit(self, pull_batch_size: int) -> int:
        """Return how many messages a pull may request, so that a low rate does not cause bursts."""
        return min(pull_batch_size, max(1, int(self.per_second))) if self.per_second else pull_batch_size
