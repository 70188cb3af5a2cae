"""The state of one queue that is pulled, and the waits while it is not.

A queue is not pulled while it is paused, while its cache is full, while messages at the next offset are still handled,
and while an operator has to act. A broker tells of an operator's reset only in the answer to a pull. So a queue that
waits is probed now and then: it is asked for one message, which is not taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Final

import structlog

from rmqd.clock import wait_within
from rmqd.codes import ResponseCode
from rmqd.consumer.assigned.loop import Loop
from rmqd.consumer.cache.flow_control import Reason, exceeded, note_held_back
from rmqd.consumer.cache.keyed_process_queue import KeyedProcessQueue, key_by
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.backoff import EXCEPTION_DELAY_SECONDS
from rmqd.consumer.pull.request import PullRequest
from rmqd.consumer.stats.counters import TopicStats
from rmqd.diagnosis.causes import Problem
from rmqd.errors import RmqdError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

RECHECK_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 10.0  # how soon an operator's reset reaches a queue that is held

FOUND: Final = int(ResponseCode.SUCCESS)
NOTHING: Final = frozenset((int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY)))
MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)


class PulledQueue(Loop):
    """What is known and cached of a queue. `process_queue` is replaced when an operator moves the offset."""

    def __init__(self, context: GroupContext, message_queue: MessageQueue, offset: int) -> None:
        super().__init__(context, message_queue)
        options, topic = context.options, message_queue.topic
        self.process_queue = self._cache(offset, context.stats[topic])
        self.formers: list[ProcessQueue] = []  # those before it, of which handlers may still have batches
        self.request = PullRequest(context.client, options.group, message_queue, context.subscriptions[topic])
        self.stuck: Problem | None = None  # why nothing is pulled until an operator acts
        self.waits_for_rate = False
        self.max_offset: int | None = None
        self.measured_at = 0.0  # when the broker was last asked for it, beside the pulls
        self.looked_at = self._probed_at = self.asked_at

    @property
    def process_queues(self) -> tuple[ProcessQueue]:
        """The queue's one cache, as every kind of loop tells its caches."""
        return (self.process_queue,)

    @property
    def is_behind(self) -> bool:
        """Whether messages wait on the broker, as far as it has told."""
        return self.max_offset is not None and self.max_offset > self.process_queue.next_offset

    @abstractmethod
    async def offset_moved(self, reply: RemotingCommand) -> None:
        """Treat an answer PULL_OFFSET_MOVED: the broker refuses the offset and offers another. Raises RmqdError."""

    def start_again(self, offset: int, because: str) -> None:
        """Drop the cache and pull from `offset` on.

        What handlers have now is ignored when it returns, and counts as handled twice, with the cause `because`.
        """
        process_queue = self.process_queue
        process_queue.drop(because)
        self.formers = [former for former in (*self.formers, process_queue) if former.is_busy]
        self.stuck = None
        self.process_queue = self._cache(offset, process_queue.stats)
        self.begun_at = self._context.clock.wall()
        self.apply_pauses()

    def _cache(self, offset: int, stats: TopicStats) -> ProcessQueue:
        options = self._context.options
        if options.order_by:
            return KeyedProcessQueue(self._message_queue, offset, stats, options.namespace, key_by(options.order_by))
        return self._context.cache(self._message_queue, offset, stats, options.namespace)

    async def probe(self, offset: int | None = None) -> None:
        """Ask for one message, without waiting and without taking it: an operator's reset is told in such a reply.

        At another `offset` than the next one, nothing else that is said counts.
        """
        self._probed_at = self._context.clock.monotonic()
        asked = self.process_queue.next_offset if offset is None else offset
        try:
            reply = await self.request.ask(asked, 0, 0, 1)
            if (reset_to := self.request.reset_told(asked, reply)) is not None:
                self.request.reset_to = reset_to
            elif reply.code == FOUND or reply.code in NOTHING:
                self.max_offset = PullMessageResponseHeader.from_ext_fields(reply.ext_fields).max_offset
            elif reply.code == MOVED and offset is None:
                await self.offset_moved(reply)
        except RmqdError as error:
            log.debug("probe.failed", queue=str(self._message_queue), error=str(error))

    async def pause(self) -> None:
        """Wait for as long as after an error, before the next pull."""
        await self._context.clock.sleep(EXCEPTION_DELAY_SECONDS)

    async def wait_for_operator(self) -> None:
        """Wait before it is looked whether an operator moved the queue."""
        self.looked_at = self._context.clock.monotonic()
        await self._context.clock.sleep(PROBE_SECONDS)

    async def wait_at(self, offset: int) -> None:
        """Wait as after an error, and see to it that an operator is heard, who may move the queue meanwhile."""
        self.looked_at = self._context.clock.monotonic()
        await self.pause()
        if self._context.clock.monotonic() - self._probed_at >= PROBE_SECONDS:
            await self.probe(offset)

    async def _wait_for_rate(self) -> None:
        """Wait until the group's rate limit lets the next pull through."""
        self.waits_for_rate = True
        try:
            await self._context.rate_limit.wait()
        finally:
            self.waits_for_rate = False

    def _hold_back(self) -> Reason | None:
        if self._context.paused or self.process_queue.is_paused:
            return "paused"
        return exceeded(self.process_queue, self._context.thresholds)

    async def _wait_for_relief(self, reason: Reason) -> None:
        """Wait until the reason to hold back has gone; it is counted once."""
        note_held_back(self.process_queue, reason, self._context.thresholds)
        await self._wait_while(lambda: self._hold_back() == reason, reason)

    async def _wait_while(self, is_held: Callable[[], bool], reason: Reason | None = None) -> None:
        """Wait until nothing holds the queue back, or an operator moves it. The time counts for the `reason`."""
        process_queue, clock = self.process_queue, self._context.clock
        self.held_by = reason
        self._probed_at = since = clock.monotonic()
        try:
            while self.process_queue is process_queue and self.request.reset_to is None and is_held():
                self.looked_at = clock.monotonic()
                if self.looked_at - self._probed_at >= PROBE_SECONDS:
                    await self.probe()
                    continue
                await self._relieved(process_queue)
                since = self._count_hold(process_queue, reason, since)
        finally:
            self._count_hold(process_queue, reason, since)
            self.held_by = None

    async def _relieved(self, process_queue: ProcessQueue) -> None:
        """Wait until messages were finished, or for a second."""
        context = self._context
        relief = context.resumed.wait() if context.paused else process_queue.wait_relief()
        await wait_within(context.clock, RECHECK_SECONDS, relief)

    def _count_hold(self, process_queue: ProcessQueue, reason: Reason | None, since: float) -> float:
        now = self._context.clock.monotonic()
        if reason is not None:
            process_queue.stats.held_for(reason, now - since, process_queue.oldest())
        return now
