"""Handles one queue range, from the first pull until all messages are acknowledged, sent back or dead-lettered.

This code runs in the handler's event loop, on an executor. Pulls are sent when the cache has room for their messages.
Responses are processed in the order of their offsets. `range_plan` chooses the pulls and interprets the responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.cache.flow_control import FlowControlReason, Thresholds, exceeded_threshold
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.hooks import GroupHooks
from rmqd.consumer.pull.accept import MessageAcceptor, dead_letter_corrupt, decompress_bodies, log_corrupt
from rmqd.consumer.services import ConsumeMessageService, RetryPolicy
from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import RemotingTimeoutError, RmqdError
from rmqd.runtime.clock import Clock, wait_within
from rmqd.spark.session.queue_range import QueueRange
from rmqd.spark.session.spark_cluster import current_replicas
from rmqd.spark.source.range_plan import RangePlan, ResetByOperator
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.message import CorruptMessage, MessageBlock
from rmqd.wire.messages.pull_walk import BadRecord, Gap, ResponseWalk, needs_no_walk

_PULL: Final = int(RequestCode.PULL_MESSAGE)
_FOUND: Final = int(ResponseCode.SUCCESS)


@dataclass(frozen=True, slots=True)
class PulledResponse:
    """A pull response for the offsets from `start` to before `end`. `block` is None if it contains no messages."""

    start: int
    end: int
    block: MessageBlock | None
    seconds: float


OpenBodies = Callable[["MessageBlock", int], Awaitable[object]]
"""A function that decompresses message bodies of a block, from an offset on, as long as the cache has room for them."""


class AsyncRangePuller:
    """Pulls the spans that the caller adds to `plan`, and returns the responses in the order of their offsets."""

    def __init__(self, client: ClientInstance, queue_range: QueueRange, open_bodies: OpenBodies) -> None:
        self.plan = RangePlan(queue_range, client.remoting.security.credentials)
        self.largest_bytes = 0
        """The size of the largest pull response so far."""
        self._client = client
        self._open_bodies = open_bodies
        self._range = queue_range
        self._connection: RemotingConnection | None = None
        # key: opaque of the request; value: the time when the pull was sent, and a future for the response
        self._pulls: dict[int | None, tuple[float, asyncio.Future[RemotingCommand]]] = {}
        self._misplaced: dict[int, BadRecord] = {}  # messages with a wrong offset, by their place

    async def next_response(self) -> PulledResponse | ResetByOperator | None:
        """Send the pulls of new spans, and return the response for the first span; None if its pull must be repeated.

        Raises DataLossError for lost messages if `fail_on_data_loss`, RmqdError if no replica answers in time.
        """
        try:
            await self._ask()
            if not self.plan.spans:
                return None
            asked_at, reply = self._pulls.pop(self.plan.spans[0].opaque)
            return await self._settle(await reply, asked_at)
        except RmqdError as error:
            self._disconnect(error)
            self.plan.handle_failure(error, time.monotonic())
            return None

    async def _ask(self) -> None:
        """Send a pull for every new span. If the plan requires it, pause and query the route first."""
        plan, remoting, timeout_seconds = self.plan, self._client.remoting, self._range.pull.timeout_seconds
        if pause := plan.take_pause_seconds():
            await asyncio.sleep(pause)
        if plan.must_query_route:
            self._pulls.clear()
            self._connection = None
            try:
                replicas = await current_replicas(self._client.routes, self._range.queue)
            except RmqdError as error:
                plan.keep_known_replicas(error)
            else:
                plan.use_replicas(replicas)
        for opaque, frame in plan.new_requests():
            if self._connection is None or not self._connection.is_open:
                with contextlib.suppress(RmqdError):
                    await self._client.routes.lookup(self._range.queue.topic)  # needed to send failed messages back
                self._connection = await remoting.connection(plan.address)
            reply = self._connection.call(_PULL, opaque, frame, timeout_seconds)
            self._pulls[opaque] = time.monotonic(), reply

    async def _settle(self, reply: RemotingCommand, asked_at: float) -> PulledResponse | ResetByOperator | None:
        block, cut_at, damage = None, None, None
        if reply.code == _FOUND:
            namespace = self._client.options.namespace
            block = frame_messages(reply.payload, self._range.queue, reply.body_start, namespace)
            low, takes_all = self.plan.spans[0].low, self._range.subscription.matches_all_messages
            damage = block.broken_reason or self._wrong_offset(block, low, reply, takes_all=takes_all)
            if block.is_closed and damage is None:
                await self._open_bodies(block, low)
            cut_at = block.first_unopened_offset
        decision = self.plan.handle_response(reply, damage, cut_at)
        if decision is None or isinstance(decision, ResetByOperator):
            return decision
        if not decision.has_messages:
            block = None
        if block is not None:
            self.largest_bytes = max(self.largest_bytes, block.size_bytes)
            header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
            block.min_offset, block.max_offset = header.min_offset, header.max_offset
        return PulledResponse(decision.start, decision.end, block, time.monotonic() - asked_at)

    def _wrong_offset(self, block: MessageBlock, asked: int, reply: RemotingCommand, *, takes_all: bool) -> str | None:
        """Return why a message's offset, or the response's next begin offset, is wrong; None if they fit together.

        If two responses have the same message with the same wrong offset, the message is corrupt.
        """
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        if block.messages and needs_no_walk(block, asked, header):
            return None
        walk = ResponseWalk(block, asked, header, takes_all=takes_all)
        while (found := walk.advance()) is not None:
            if isinstance(found, Gap):
                walk.skip_confirmed_gap(found.to)
                continue
            if not isinstance(found, BadRecord):
                return found.reason
            message = found.message
            if found.offset != message.queue_offset:
                former = self._misplaced.get(found.at)
                if former is None or not found.has_same_bytes(former):
                    self._misplaced[found.at] = found
                    return found.reason
                message.queue_offset = found.offset
                if message in block.messages:
                    block.messages.remove(message)
                    block.unfinished = len(block.messages)
                    block.corrupt.append(CorruptMessage(message, found.reason))
            walk.skip_bad_record(found)
        return None

    def _disconnect(self, error: RmqdError) -> None:
        """Discard the pulls in flight. After a timeout, make the client open another connection to the broker."""
        if isinstance(error, RemotingTimeoutError) and self._connection is not None:
            # the broker may never respond on this connection again
            self._client.remoting.retire(self._connection, "a pull was not answered")
        self._connection = None
        self._pulls.clear()


log = structlog.get_logger(__name__)

ASSUMED_RESPONSE_BYTES: Final = 64 * 1024  # assumed size of a response until the first response arrives
CORRUPT_RETRY_SECONDS: Final = 1.0
FINISH_RECHECK_SECONDS: Final = 1.0


class RangeHandler:
    """Passes a range's messages to `service`, within the flow control thresholds, until all are finished."""

    def __init__(
        self,
        queue_range: QueueRange,
        options: ConsumerOptions,
        client: ClientInstance,
        service: ConsumeMessageService,
        retry_policy: RetryPolicy,
        stats: TopicStats,
        hooks: GroupHooks | None,
        clock: Clock,
    ) -> None:
        self.reset_to: int | None = None
        """The offset at which the queue continues instead of the range's end; None if it continues at the end."""
        self.failure = ""
        """Why the group must stop: the message at `reset_to` is corrupt. Empty if the group need not stop."""
        self.queue = ProcessQueue(queue_range.queue, queue_range.start, stats, options.namespace)
        self._pulls = AsyncRangePuller(client, queue_range, self._open)
        self.plan = self._pulls.plan
        self._range = queue_range
        self._options = options
        self._retry_policy = retry_policy
        self._clock = clock
        self._thresholds = Thresholds.per_queue(options, 1)
        self._acceptor = MessageAcceptor(service, hooks)
        self._acceptor.select_tags(queue_range.subscription.tags_set)

    async def run(self) -> None:
        """Handle the range. Raises the errors of `AsyncRangePuller.next_response`."""
        while self.plan.is_unfinished and self.reset_to is None:
            await self._step()
        if self.queue.is_releasing:
            await self.queue.wait_idle()
        else:
            await self._until(lambda: not self.queue.cached_count)

    async def _open(self, block: MessageBlock, low: int) -> None:
        room = self._thresholds.size_bytes - self.queue.cached_bytes
        await decompress_bodies(block, self._options.max_body_size_bytes, room, low)

    async def _step(self) -> None:
        """Send pulls for as many messages as the cache has room for, and process the first response."""
        while self._has_room() and self.plan.add_span():
            pass
        if not self.plan.spans:
            await self._wait_for_room()
            return
        pulled = await self._pulls.next_response()
        if pulled is None:
            return
        if isinstance(pulled, ResetByOperator):
            self._leave(pulled.offset)
            return
        if pulled.block is None:
            self.queue.continue_at(pulled.end)
        else:
            await self._put(pulled, pulled.block)
            if self._options.pull_interval_seconds:
                await asyncio.sleep(self._options.pull_interval_seconds)

    def _leave(self, reset_to: int) -> None:
        """Discard messages that no handler has, because an operator reset the queue to the offset `reset_to`."""
        queue, offset = str(self._range.queue), self.queue.next_offset
        log.warning("spark.queue_reset", queue=queue, offset=offset, reset_to=reset_to)
        self.reset_to = reset_to
        self.queue.start_release()

    async def _put(self, pulled: PulledResponse, block: MessageBlock) -> None:
        end = pulled.end
        for corrupt in sorted(block.corrupt, key=lambda corrupt: corrupt.message.queue_offset):
            if pulled.start <= corrupt.message.queue_offset < end and await self._set_aside(corrupt):
                end = corrupt.message.queue_offset
                break
        messages = block.messages
        if messages and (messages[0].queue_offset < pulled.start or messages[-1].queue_offset >= end):
            block.messages = [message for message in messages if pulled.start <= message.queue_offset < end]
            block.unfinished = len(block.messages)
        self.queue.stats.count_pull(pulled.seconds)
        self._acceptor.accept(block, self.queue, end)

    async def _set_aside(self, corrupt: CorruptMessage) -> bool:
        """Apply `on_corrupt_message` to a corrupt message. Return True if the range must end before this message."""
        message, policy = corrupt.message, self._options.on_corrupt_message
        log_corrupt(self.queue, message, message.queue_offset, corrupt.reason, policy)
        if policy == "stop":
            self.reset_to = message.queue_offset
            self.failure = (
                f"the message at offset {message.queue_offset} of {self._range.queue} is corrupt: {corrupt.reason}; "
                "move the offset with `rmqd offsets reset`, or set on_corrupt_message and reload"
            )
        elif policy == "dead_letter":
            while not await dead_letter_corrupt(self._retry_policy, self.queue, message, corrupt.reason):  # noqa: ASYNC110
                await asyncio.sleep(CORRUPT_RETRY_SECONDS)
        return policy == "stop"

    def _has_room(self) -> bool:
        """Return whether the cache has room for another pull, if every pull in flight returns its maximum."""
        queue, plan, most = self.queue, self.plan, self._thresholds
        if not plan.spans:
            return exceeded_threshold(queue, most) is None
        size = max(self._pulls.largest_bytes, ASSUMED_RESPONSE_BYTES)
        oldest = queue.blocks[0].messages[0].queue_offset if queue.blocks else queue.next_offset
        return (
            queue.cached_count + plan.max_awaited_messages <= most.count
            and queue.cached_bytes + len(plan.spans) * size <= most.size_bytes
            and plan.planned_end - oldest <= most.span
        )

    async def _wait_for_room(self) -> None:
        """Wait until the cache exceeds no threshold, and count the wait in the topic's statistics."""
        queue = self.queue
        reason: FlowControlReason | None = exceeded_threshold(queue, self._thresholds)
        if reason is None:
            return
        queue.stats.count_held_back(reason, queue.oldest())
        oldest, since = queue.oldest(), self._clock.monotonic()
        await self._until(lambda: exceeded_threshold(queue, self._thresholds) is None)
        queue.stats.add_held_seconds(reason, self._clock.monotonic() - since, oldest)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so` returns True. `is_so` is called when messages are finished, and every second."""
        while not is_so():
            await wait_within(self._clock, FINISH_RECHECK_SECONDS, self.queue.wait_for_room())
