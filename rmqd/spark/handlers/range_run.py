"""One range of a queue, from its first pull until each of its messages is acknowledged, sent back or dead-lettered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from rmqd.clock import wait_within
from rmqd.consumer.cache.flow_control import Reason, Thresholds, exceeded
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.pull.arrivals import CORRUPT_ADVICE, Arrivals, dead_letter_corrupt, tell_corrupt
from rmqd.consumer.pull.opening import open_bodies
from rmqd.spark.handlers.range_pulls import Pulled, RangePulls
from rmqd.spark.source.range_plan import ResetByOperator

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.clock import Clock
    from rmqd.consumer.hooks import GroupHooks
    from rmqd.consumer.options import ConsumerOptions
    from rmqd.consumer.services import ConsumeMessageService, WaysBack
    from rmqd.consumer.stats.counters import TopicStats
    from rmqd.spark.queue_range import QueueRange
    from rmqd.wire.messages.message import CorruptMessage, MessageBlock

log = structlog.get_logger(__name__)

LEAST_ANSWER_BYTES: Final = 64 * 1024  # assumed size of a response before the first ones arrive
CORRUPT_RETRY_SECONDS: Final = 1.0
RECHECK_SECONDS: Final = 1.0


class RangeRun:
    """Feeds a range to the group's service, within its thresholds, and waits until all messages are finished."""

    def __init__(
        self,
        queue_range: QueueRange,
        options: ConsumerOptions,
        client: ClientInstance,
        service: ConsumeMessageService,
        ways_back: WaysBack,
        stats: TopicStats,
        hooks: GroupHooks | None,
        clock: Clock,
    ) -> None:
        self.reset_to: int | None = None
        """The offset at which the queue continues instead of the range's end."""
        self.failure = ""
        """Why the queue cannot continue there."""
        self.queue = ProcessQueue(queue_range.queue, queue_range.start, stats, options.namespace)
        self._pulls = RangePulls(client, queue_range, self._open)
        self.plan = self._pulls.plan
        self._range = queue_range
        self._options = options
        self._ways_back = ways_back
        self._clock = clock
        self._thresholds = Thresholds.divided(options, 1)
        self._arrivals = Arrivals(service, hooks)
        self._arrivals.choose_by(queue_range.subscription.tags)

    async def run(self) -> None:
        """Handle the range. Raises DataLossError if a loss should fail, and RmqdError if no broker answers."""
        while self.plan.more and self.reset_to is None:
            await self._step()
        if self.queue.leaving:
            await self.queue.wait_idle()
        else:
            await self._until(lambda: not self.queue.cached_count)

    async def _open(self, block: MessageBlock, low: int) -> None:
        room = self._thresholds.size_bytes - self.queue.cached_bytes
        await open_bodies(block, self._options.max_body_size_bytes, room, low)

    async def _step(self) -> None:
        """Take one response, with pulls in flight for as many messages as may be cached."""
        while self._has_room() and self.plan.extend():
            pass
        if not self.plan.spans:
            await self._wait_for_room()
            return
        pulled = await self._pulls.take()
        if pulled is None:
            return
        if isinstance(pulled, ResetByOperator):
            self._leave(pulled.offset)
            return
        if pulled.block is None:
            self.queue.continue_at(pulled.high)
        else:
            await self._put(pulled, pulled.block)
            if self._options.pull_interval_seconds:
                await asyncio.sleep(self._options.pull_interval_seconds)

    def _leave(self, reset_to: int) -> None:
        """Finish only the messages that handlers have, because the queue continues elsewhere."""
        queue, offset = str(self._range.queue), self.queue.next_offset
        log.warning("spark.queue_reset", queue=queue, offset=offset, reset_to=reset_to)
        self.reset_to = reset_to
        self.queue.leave()

    async def _put(self, pulled: Pulled, block: MessageBlock) -> None:
        end = pulled.high
        for corrupt in block.corrupt:
            if pulled.low <= corrupt.message.queue_offset < end and await self._set_aside(corrupt):
                end = corrupt.message.queue_offset
                break
        messages = block.messages
        if messages and (messages[0].queue_offset < pulled.low or messages[-1].queue_offset >= end):
            block.messages = [message for message in messages if pulled.low <= message.queue_offset < end]
            block.unfinished = len(block.messages)
        self.queue.stats.pull_took(pulled.seconds)
        self._arrivals.take(block, self.queue, end)

    async def _set_aside(self, corrupt: CorruptMessage) -> bool:
        """Apply `on_corrupt_message` to a corrupt message. Return whether the range ends before it."""
        message, policy = corrupt.message, self._options.on_corrupt_message
        tell_corrupt(self.queue, message, message.queue_offset, corrupt.reason, policy)
        if policy == "stop":
            self.reset_to = message.queue_offset
            self.failure = (
                f"the message at offset {message.queue_offset} of {self._range.queue} is corrupt: {corrupt.reason}; "
                f"{CORRUPT_ADVICE}"
            )
        elif policy == "dead_letter":
            while not await dead_letter_corrupt(self._ways_back, self.queue, message, corrupt.reason):  # noqa: ASYNC110
                await asyncio.sleep(CORRUPT_RETRY_SECONDS)
        return policy == "stop"

    def _has_room(self) -> bool:
        """Return whether another pull stays within the thresholds, if each pull in flight returns its maximum."""
        queue, plan, most = self.queue, self.plan, self._thresholds
        if not plan.spans:
            return exceeded(queue, most) is None
        size = max(self._pulls.largest_bytes, LEAST_ANSWER_BYTES)
        oldest = queue.blocks[0].messages[0].queue_offset if queue.blocks else queue.next_offset
        return (
            queue.cached_count + plan.awaited <= most.count
            and queue.cached_bytes + len(plan.spans) * size <= most.size_bytes
            and plan.reaches_to - oldest <= most.span
        )

    async def _wait_for_room(self) -> None:
        """Wait until no threshold is exceeded. The wait is counted once."""
        queue = self.queue
        reason: Reason | None = exceeded(queue, self._thresholds)
        if reason is None:
            return
        queue.stats.held_back(reason, queue.oldest())
        oldest, since = queue.oldest(), self._clock.monotonic()
        await self._until(lambda: exceeded(queue, self._thresholds) is None)
        queue.stats.held_for(reason, self._clock.monotonic() - since, oldest)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a condition that changes when messages are finished."""
        while not is_so():
            await wait_within(self._clock, RECHECK_SECONDS, self.queue.wait_relief())
