"""The pop loop of one assignment: it pops a queue, or all queues of a broker, and caches the messages for handlers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from math import inf
from typing import Final

import structlog

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.codes import ResponseCode
from rmqd.consumer.assigned.request_loop import RequestLoop
from rmqd.consumer.cache.flow_control import FlowControlReason, log_flow_control
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.pop_source import PopSource
from rmqd.consumer.pop.receipts import PopProcessQueue
from rmqd.consumer.pull.accept import MessageAcceptor, dead_letter_corrupt, decompress_bodies, log_corrupt
from rmqd.consumer.pull.pull_loop import BROKER_HOLD_MS, MIN_HELD_SECONDS
from rmqd.consumer.pull.pull_request import (
    EMPTY_RESPONSE_PAUSE_SECONDS,
    FAILED_PULL_PAUSE_SECONDS,
    FLOW_CONTROL_PAUSE_SECONDS,
    error_pause_seconds,
)
from rmqd.consumer.pull.pulled_queue import RECHECK_INTERVAL_SECONDS
from rmqd.errors import ConnectionRenewedError, ProtocolError, RmqdError
from rmqd.errors.broker_errors import BrokerError, FlowControlError
from rmqd.runtime.clock import wait_within
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

# a measured difference of the clocks is used for at least this time, and for at most twice this time
CLOCK_DIFFERENCE_VALID_SECONDS: Final = 60.0
POP_TIME_PRECISION_SECONDS: Final = 0.002  # brokers report whole milliseconds


class PopClock:
    """Converts a broker's pop times to this process's monotonic clock: the invisible time starts at the pop.

    A response may be read long after its messages were popped: on a slow network, or if this process was suspended. It
    contains the time of the pop on the broker's clock, which may differ from the clock of this machine by any amount.
    No single response shows the difference, but the response that was read soonest after its pop comes close. So the
    converted time is too late by the network delay of that response, about a millisecond.

    If a broker's clock is set forward, the next response shows a smaller difference at once. If the clock is set back,
    a pop soon seems to be older than its request, and the difference is measured again. Until then, converted times are
    too early. A measured difference is forgotten after two minutes at most.
    """

    def __init__(self) -> None:
        self._since = -inf
        self._least = self._former = inf  # least differences in seconds: since `_since`, and in the period before

    def popped_at(self, pop_time_ms: int, asked_at: float, read_at: float) -> float:
        """Return when the broker popped. All times except `pop_time_ms` are monotonic seconds."""
        pop_time = pop_time_ms / 1000
        took = read_at - pop_time
        if read_at - self._since >= CLOCK_DIFFERENCE_VALID_SECONDS:
            self._since, self._former, self._least = read_at, self._least, inf
        self._least = min(self._least, took)
        ahead = min(self._least, self._former)
        if asked_at - pop_time > ahead + POP_TIME_PRECISION_SECONDS:
            self._least, self._former, ahead = took, inf, took
        return pop_time + ahead


log = structlog.get_logger(__name__)

MAX_POPS_IN_FLIGHT: Final = 3  # pops in flight while messages wait on the broker; otherwise a single pop is held there

# messages without room in the cache may wait for this fraction (1/2) of the invisible time
ROOM_WAIT_DIVISOR: Final = 2

_FOUND: Final = int(ResponseCode.SUCCESS)
_FULL: Final = int(ResponseCode.POLLING_FULL)
_NOTHING: Final = frozenset((int(ResponseCode.POLLING_TIMEOUT), int(ResponseCode.PULL_NOT_FOUND)))


class PopLoop(RequestLoop):
    """The pops of one assignment, from its acquisition to its release."""

    def __init__(self, context: GroupContext, source: PopSource) -> None:
        super().__init__(context, source.message_queue)
        self._by_message_queue: dict[MessageQueue, PopProcessQueue] = {}  # key: the queue that stores the messages
        self.broker_backlog = 0  # messages that wait on the broker, from the last response
        self.has_discarded = False  # messages were discarded, because no handler was free for them
        self._full_times = 0  # how often too many unacknowledged messages prevented a pop
        self.cached = asyncio.Event()  # set when messages are put into the queues
        self.moved_at = self.last_request_at  # when messages were last finished, or arrived while none waited
        self._source = source
        self._receipts = source.receipts
        self._relief = asyncio.Event()
        self._more = asyncio.Event()  # set while messages wait on the broker
        self._acceptor = MessageAcceptor(context.service, context.hooks, context.rate_limit)
        self._pop_time = PopClock()
        self._configure()

    @property
    def process_queues(self) -> list[PopProcessQueue]:
        return list(self._by_message_queue.values())

    def blocks(self) -> Iterator[tuple[PopProcessQueue, PopBlock]]:
        """Yield the unfinished blocks with their caches. The caller may finish messages meanwhile."""
        for process_queue in self.process_queues:
            for block in list(process_queue.blocks):
                assert isinstance(block, PopBlock)
                yield process_queue, block

    @property
    def has_backlog(self) -> bool:
        return self.broker_backlog > 0

    @property
    def unacknowledged(self) -> int:
        """How many messages wait for a handler or are in flight."""
        return sum(process_queue.cached_count for process_queue in self.process_queues)

    @property
    def pops_in_flight(self) -> int:
        """How many pops have no response yet. The broker holds one of them while it has no messages."""
        return self._source.pops_in_flight

    async def run(self) -> None:
        """Pop until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._source.maintain(), name=f"keep source:{self._message_queue}")
            for number in range(MAX_POPS_IN_FLIGHT):
                tasks.create_task(self._pop(is_first=number == 0), name=f"pop:{self._message_queue}:{number}")

    def apply_options(self) -> int:
        self._configure()
        self._source.refresh()
        return sum(map(self._acceptor.discard_unwanted, self.process_queues))

    def apply_pauses(self) -> None:
        super().apply_pauses()
        self._relief.set()

    def on_room(self) -> None:
        """Called when messages were finished, so that there may be room for more."""
        self.moved_at = self._context.clock.monotonic()
        self.has_discarded = False
        self._relief.set()

    def _configure(self) -> None:
        context = self._context
        options, subscription = context.options, context.subscriptions[self._message_queue.topic]
        self._revision = context.options_revision
        self._threshold, self._batch = options.pop_threshold_for_queue, options.pop_batch_nums
        self._interval = options.pull_interval_seconds
        self._acceptor.select_tags(subscription.tags_set)
        self._fields = self._source.fields(context.rate_limit.batch_limit(self._batch))

    async def _pop(self, *, is_first: bool) -> None:
        """Pop repeatedly. The broker holds only the pops of the first task; the others pop only while messages wait."""
        context, clock = self._context, self._context.clock
        while True:
            if not is_first:
                await self._more.wait()
            if self._revision != context.options_revision:
                self._configure()
            if (reason := self._hold_back()) is not None:
                await self._wait_for_relief(reason, counted=is_first)
                continue
            if context.rate_limit.per_second:
                await context.rate_limit.wait()
            try:
                asked_at = self.last_request_at = clock.monotonic()
                came_late = partial(self._came_late, asked_at)
                reply = await self._source.pop(self._fields, BROKER_HOLD_MS if is_first else 0, came_late)
                self.last_response_at = clock.monotonic()
                if reply.code == _FOUND:
                    await self._found(reply, asked_at, self.last_response_at)
                else:
                    await self._not_found(reply, asked_at, self.last_response_at)
                self.failure = None
                if self._interval and reply.code == _FOUND:
                    await clock.sleep(self._interval)
            except RmqdError as error:
                await self._failed(error)

    async def _found(self, reply: RemotingCommand, asked_at: float, read_at: float) -> None:
        context = self._context
        header, framed = self._source.read(reply)
        popped_at = self._pop_time.popped_at(header.pop_time, asked_at, read_at)
        due = popped_at + header.invisible_time / 1000
        self.broker_backlog = header.rest_num
        if header.rest_num:
            self._more.set()
        else:
            self._more.clear()
        stats = context.stats[self._message_queue.topic]
        stats.count_pull(read_at - asked_at)
        if not self.unacknowledged:
            self.moved_at = read_at
        while True:
            left: list[Message] = []
            if framed.is_closed or len(framed.data) > context.options.max_body_size_bytes:
                left = await decompress_bodies(framed, context.options.max_body_size_bytes, self._room(), unwraps=False)
            for block in self._source.divide_into_blocks(framed, header, due):
                if context.clock.monotonic() >= block.renew_at:  # the messages are or will soon be visible to others
                    queue, seconds = str(block.queue), round(read_at - popped_at, 3)
                    log.warning("pop.came_late", queue=queue, messages=len(block.messages), seconds=seconds)
                    continue
                process_queue = self._process_queue_of(block)
                if block.corrupt:
                    await self._set_aside(block, process_queue)
                self._put(block, process_queue)
            if not left:
                break
            framed, until = framed.of(left), popped_at + header.invisible_time / ROOM_WAIT_DIVISOR / 1000
            # in order, they must not overtake the cached messages before them, which may fail
            if self._source.keeps_order or not await self._wait_for_room(until):
                self._source.make_visible(framed, header, due)
                await self._wait_for_room(until)
                break

    def _put(self, block: PopBlock, process_queue: PopProcessQueue) -> None:
        self._acceptor.accept(block, process_queue, 0)
        self.cached.set()

    def _room(self) -> int:
        """Return how many more bytes the size threshold allows in this assignment's caches; negative if exceeded."""
        cached_bytes = sum(process_queue.cached_bytes for process_queue in self.process_queues)
        return self._context.thresholds.size_bytes - cached_bytes

    async def _wait_for_room(self, until: float) -> bool:
        """Wait until handlers finish cached messages. Returns False if `until` (monotonic seconds) passes first."""
        clock = self._context.clock
        while self._room() < 0 and clock.monotonic() < until:
            self._relief.clear()
            await wait_within(clock, RECHECK_INTERVAL_SECONDS, self._relief.wait())
        return self._room() >= 0

    def _process_queue_of(self, block: PopBlock) -> PopProcessQueue:
        """Return the cache of the block's queue. The first message of the queue creates it."""
        message_queue = block.queue
        process_queue = self._by_message_queue.get(message_queue)
        if process_queue is None:
            process_queue = self._source.create_cache(message_queue, self._put, self.on_room)
            self._by_message_queue[message_queue] = process_queue
            if self.is_paused or self._context.pauses.is_paused(message_queue):
                process_queue.pause()
        return process_queue

    async def _set_aside(self, block: PopBlock, process_queue: PopProcessQueue) -> None:
        """Apply `on_corrupt_message` to corrupt messages. With `stop` they are redelivered, and block no others."""
        context, policy = self._context, self._context.options.on_corrupt_message
        for corrupt in block.corrupt:
            message, reason = corrupt.message, corrupt.reason
            log_corrupt(process_queue, message, message.queue_offset, reason, policy)
            if policy == "skip" or (
                policy == "dead_letter"
                and await dead_letter_corrupt(context.retry_policy, process_queue, message, reason)
            ):
                self._receipts.acknowledge(block, [message.queue_offset], process_queue.stats)

    async def _not_found(self, reply: RemotingCommand, asked_at: float, read_at: float) -> None:
        self._more.clear()
        if (pop_time := reply.ext_fields.get("popTime", "0")).isdecimal() and int(pop_time):
            self._pop_time.popped_at(int(pop_time), asked_at, read_at)
        if reply.code == _FULL:
            await self._context.clock.sleep(FAILED_PULL_PAUSE_SECONDS)
        elif reply.code not in _NOTHING:
            raise BrokerError.of(reply.code, reply.remark, self._message_queue.broker_name)
        elif self._source.was_refused_as_late(reply) or read_at - asked_at < MIN_HELD_SECONDS:
            # slows down requests to a broker that returns nothing without waiting
            await self._context.clock.sleep(EMPTY_RESPONSE_PAUSE_SECONDS)
        else:
            self.broker_backlog = 0

    async def _failed(self, error: RmqdError) -> None:
        self._source.refresh()
        if isinstance(error, ConnectionRenewedError):
            return
        self._more.clear()
        self.failure = error
        if isinstance(error, FlowControlError):
            await self._context.clock.sleep(FLOW_CONTROL_PAUSE_SECONDS)
            return
        if not error.is_reported:
            log.warning("pop.failed", queue=str(self._message_queue), error=str(error))
        self._bring_up_to_date(error)
        await self._context.clock.sleep(error_pause_seconds())

    def _hold_back(self) -> FlowControlReason | None:
        """Return the reason not to pop, or None. As in Java, pops in flight count as full batches."""
        if self._context.paused or self.is_paused:
            return "paused"
        if self._waits_for_circuit():
            return "paused"
        if self.has_discarded and any(process_queue.in_flight for process_queue in self.process_queues):
            return "count"
        reserved = self.pops_in_flight * self._batch
        return "count" if self.unacknowledged + reserved > self._threshold else None

    def _waits_for_circuit(self) -> bool:
        """Return whether the circuit breaker prevents pops. A half-open circuit needs one message for a test call."""
        circuit = self._context.circuit
        if circuit is None or circuit.state == "closed":
            return False
        has_new = any(process_queue.waiting_count for process_queue in self.process_queues)
        return circuit.state == "open" or has_new or self.pops_in_flight > 0

    async def _wait_for_relief(self, reason: FlowControlReason, *, counted: bool) -> None:
        """Wait while `reason` prevents pops. If `counted`, count the reason and the time in the statistics."""
        context, stats = self._context, self._context.stats[self._message_queue.topic]
        since = context.clock.monotonic()
        if counted:
            stats.count_held_back(reason, None)
            self.hold_reason = reason
            if reason == "count" and self.unacknowledged + self._batch > self._threshold:  # even without other pops
                self._full_times += 1
                cached = {"threshold": self._threshold, "count": self.unacknowledged}
                log_flow_control(self._full_times, self._message_queue, reason, **cached)
        try:
            while self._hold_back() == reason:
                self._relief.clear()
                for process_queue in self.process_queues:
                    process_queue.is_full = not context.paused
                    if process_queue.cannot_fill_batch:
                        context.service.submit(process_queue)
                relief = context.not_paused if context.paused else self._relief
                await wait_within(context.clock, RECHECK_INTERVAL_SECONDS, relief.wait())
        finally:
            for process_queue in self.process_queues:
                process_queue.is_full = False
            if counted:
                stats.add_held_seconds(reason, context.clock.monotonic() - since, None)
                self.hold_reason = None

    def _came_late(self, asked_at: float, connection: RemotingConnection, reply: RemotingCommand) -> None:
        """Make the messages of a late response visible to other members soon.

        The requests use the pop's connection, because the client may know no routes after the group has stopped.
        """
        if reply.code != _FOUND:
            return
        with contextlib.suppress(ProtocolError):
            header, framed = self._source.read(reply)
            popped_at = self._pop_time.popped_at(header.pop_time, asked_at, self._context.clock.monotonic())
            self._source.make_visible(framed, header, popped_at + header.invisible_time / 1000, connection)
