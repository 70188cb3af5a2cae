"""Pulls one queue: asks the broker for what comes next, and puts it where workers take it from."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

import structlog

from rmqd.codes import ResponseCode
from rmqd.consumer.context import GroupContext
from rmqd.consumer.flow_control import Reason, exceeded
from rmqd.consumer.offset_moves import OffsetMoves
from rmqd.consumer.opening import open_pulled
from rmqd.consumer.problem import Problem
from rmqd.consumer.process_queue import ProcessQueue
from rmqd.consumer.pull_backoff import EXCEPTION_DELAY_SECONDS, PullBackoff
from rmqd.consumer.pull_request import AskedAnewError, PullRequest
from rmqd.errors import (
    BrokerError,
    ConnectionRenewedError,
    FilterDataNotExistError,
    FilterDataNotLatestError,
    FlowControlError,
    GoAwayError,
    ProtocolError,
    RemotingError,
    RmqdError,
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    SystemBusyError,
    TopicNotExistError,
)
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pull import PullMessageResponseHeader
from rmqd.wire.heartbeat import EXPRESSION_TAG
from rmqd.wire.message import CorruptMessage, MessageBlock, MessageQueue
from rmqd.wire.message_decode import frame_messages
from rmqd.wire.sys_flag import PullSysFlag
from rmqd.wire.topics import is_retry_topic, topic_of_pop_retry

log = structlog.get_logger(__name__)

SUSPEND_MS: Final = 15_000  # Java: brokerSuspendMaxTimeMillis
RECHECK_SECONDS: Final = 1.0
PROBE_SECONDS: Final = 10.0  # how soon an operator's reset reaches a queue that is held
UNHELD_SECONDS: Final = 0.01

_FOUND: Final = int(ResponseCode.SUCCESS)
_NOTHING: Final = frozenset((int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY)))
_ILLEGAL: Final = int(ResponseCode.PULL_OFFSET_MOVED)
# The broker's idea of the group's filter is missing or older than ours: a heartbeat brings it.
SUBSCRIPTION_AWAY: Final = (
    SubscriptionNotExistError,
    SubscriptionNotLatestError,
    FilterDataNotExistError,
    FilterDataNotLatestError,
)


class PullLoop:
    """One queue's pulls, for as long as it is owned. `process_queue` is replaced when an operator moves the offset."""

    def __init__(self, context: GroupContext, queue: MessageQueue, offset: int) -> None:
        self._namespace = context.options.namespace
        self._origin = topic_of_pop_retry(context.options.group, queue.topic)
        self.process_queue = ProcessQueue(queue, offset, context.stats[queue.topic], self._namespace)
        self.formers: list[ProcessQueue] = []  # those before it, of which handlers may still have batches
        self.held_by: Reason | None = None
        self.stuck: Problem | None = None  # why nothing is pulled until an operator acts
        self.failure: RmqdError | None = None  # of the last pull
        self.waits_for_rate = False
        self.max_offset: int | None = None
        self.measured_at = 0.0  # when the broker was last asked for it, beside the pulls
        self.answered_at = self.asked_at = self.looked_at = self._probed_at = context.clock.monotonic()
        self._context = context
        self._queue = queue
        self._backoff = PullBackoff()
        self._moves = OffsetMoves(self, context, queue)
        self._corrupt_offset = -1  # the last corrupt message that was reported
        self.request = PullRequest(context.client, context.options.group, queue, context.subscriptions[queue.topic])
        self._configure()

    async def run(self) -> None:
        """Pull until cancelled."""
        context = self._context
        while True:
            if self._revision != context.revision:
                self._configure()
            if self.request.reset_to is not None:
                await self._take_reset()
            if (reason := self._hold_back()) is not None:
                await self._wait_for_relief(reason)
                continue
            if self.process_queue.reaches_past():
                await self._wait_until_handled()
                continue
            if context.rate_limit.per_second:
                await self._wait_for_rate()
            try:
                reply = await self._pull()
                if reply.code == _FOUND:
                    await self._found(reply)
                else:
                    await self._not_found(reply)
                self.failure = None
            except RmqdError as error:
                await self._failed(error)
            if self._interval:
                await asyncio.sleep(self._interval)

    async def move_to(self, offset: int) -> None:
        """Go on at `offset`, as an operator says, whatever is cached or was committed. Not while `run` runs."""
        log.warning("offset.moved", queue=str(self._queue), offset=self.process_queue.next_offset, moved_to=offset)
        try:
            await self._moves.begin_at(offset)
        except RmqdError as error:  # the next round of commits has it
            if not error.is_told:
                log.warning("offset.commit_failed", queue=str(self._queue), offset=offset, error=str(error))

    def start_again(self, offset: int, because: str) -> None:
        """Let go of what is cached; what handlers have now counts no more, and as handled twice `because`."""
        queue = self.process_queue
        queue.drop(because)
        self.formers = [former for former in (*self.formers, queue) if former.in_flight]
        self.stuck = None
        self.process_queue = ProcessQueue(self._queue, offset, queue.stats, self._namespace)
        self.apply_pauses()

    def take_over(self) -> int:
        """Go by what the group is told to do now, and not only from the next pull on.

        Where the filter is another one, the pull under way is asked anew: what it brings may have been chosen by the
        old filter, though stored later. Returns how many cached messages were let go, as the new tags don't match them.
        """
        if not self._configure():
            return 0
        self.request.ask_anew()
        return self.process_queue.let_go(lambda message: message.has_tag(self._tags)) if self._tags else 0

    async def _take_reset(self) -> None:
        offset, self.request.reset_to = self.request.reset_to, None
        assert offset is not None
        try:
            await self._moves.reset(offset)
        except RmqdError as error:
            await self._failed(error)

    def _configure(self) -> bool:
        """Take over what the group is told to do, again whenever that changed; says whether the filter did."""
        context, topic = self._context, self._queue.topic
        self._revision = context.revision
        options, subscription = context.options, context.subscriptions[topic]
        self._interval = options.pull_interval_seconds
        by_tag = subscription.expression_type == EXPRESSION_TAG
        self._tags = frozenset(tag.encode() for tag in subscription.tags_set) if by_tag else frozenset[bytes]()
        self._batch_size = context.rate_limit.most(options.pull_batch_size)
        return self.request.filter_by(subscription)

    async def _pull(self) -> RemotingCommand:
        self.asked_at = self._context.clock.monotonic()
        reply = await self.request.ask(
            self.process_queue.next_offset, PullSysFlag.SUSPEND, SUSPEND_MS, self._batch_size
        )
        self.answered_at = self._context.clock.monotonic()
        return reply

    async def _probe(self) -> None:
        """Ask for one message, without waiting and without taking it: an operator's reset is told in such a reply."""
        self._probed_at = self._context.clock.monotonic()
        try:
            reply = await self.request.ask(self.process_queue.next_offset, 0, 0, 1)
            if reply.code == _FOUND or reply.code in _NOTHING:
                self.max_offset = PullMessageResponseHeader.from_ext_fields(reply.ext_fields).max_offset
            elif reply.code == _ILLEGAL:
                await self._not_found(reply)
        except RmqdError as error:
            log.debug("probe.failed", queue=str(self._queue), error=str(error))

    async def _found(self, reply: RemotingCommand) -> None:
        header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
        queue = self.process_queue
        if header.next_begin_offset <= queue.next_offset:
            raise ProtocolError(f"a pull at {queue.next_offset} found messages, and is to go on at {header[0]}")
        self.request.broker_id, self.max_offset = header.suggest_which_broker_id, header.max_offset
        try:
            block = frame_messages(reply.payload, self._queue, reply.body_start, self._namespace)
        except ProtocolError as error:
            self.request.close_corrupt(error)
            raise
        block.origin = self._origin
        if block.is_closed and not await open_pulled(block, self._context, queue):
            return
        if block.corrupt and not await self._set_aside(block):
            return
        self.stuck = None
        if self._tags:
            for message in block.messages:
                if not message.has_tag(self._tags):
                    queue.skip(message)
        if self._context.hooks is not None:
            self._let_hooks_choose(block)
        self._context.rate_limit.spend(block.unfinished)
        queue.stats.pulled(block)
        queue.stats.pull_took(self.answered_at - self.asked_at)
        queue.put(block, header.next_begin_offset if block.cut_at is None else block.cut_at)
        self._context.service.submit(queue)
        self._is_well()

    def _is_well(self) -> None:
        """The broker has the queue, and our place in it."""
        self._backoff.answered()
        self._moves.end_doubt()

    async def _not_found(self, reply: RemotingCommand) -> None:
        if reply.code in _NOTHING:
            header = PullMessageResponseHeader.from_ext_fields(reply.ext_fields)
            self.request.broker_id, self.max_offset = header.suggest_which_broker_id, header.max_offset
            self.stuck = None
            if header.next_begin_offset > self.process_queue.next_offset:
                self.process_queue.next_offset = header.next_begin_offset
            elif self.answered_at - self.asked_at < UNHELD_SECONDS:
                await asyncio.sleep(self._backoff.after_nothing())
                return
            self._is_well()
        elif reply.code == _ILLEGAL:
            await self._moves.answered(reply)
        else:
            raise BrokerError.of(reply.code, reply.remark, self._queue.broker_name)

    async def pause(self) -> None:
        """Wait as after an error."""
        await asyncio.sleep(EXCEPTION_DELAY_SECONDS)

    async def wait_for_operator(self) -> None:
        """Wait before it is looked whether an operator moved the queue."""
        await asyncio.sleep(PROBE_SECONDS)

    async def _set_aside(self, block: MessageBlock) -> bool:
        """Treat corrupt messages as `on_corrupt_message` says; False if the queue stays there or is moved."""
        policy, stats = self._context.options.on_corrupt_message, self.process_queue.stats
        for corrupt in block.corrupt:
            message = corrupt.message
            if message.queue_offset > self._corrupt_offset:
                self._corrupt_offset = message.queue_offset
                stats.of(message).count("corrupt")
                log.error(
                    "message.corrupt", queue=str(self._queue), offset=message.queue_offset, reason=corrupt.reason,
                    on_corrupt_message=policy,
                )  # fmt: skip
            if policy == "stop":
                await self._stop_at(block, corrupt)
                return False
            if policy == "dead_letter":
                while not await self._context.send_back.dead_letter(message, corrupt.reason, None):
                    self.stuck = Problem(
                        "retry_refused",
                        f"the corrupt message at offset {message.queue_offset} cannot be dead-lettered",
                        "send_back.failed in the log has the broker's reason; it is tried again",
                    )
                    self.looked_at = self._context.clock.monotonic()
                    await self.pause()
                    if await self._is_reset():
                        return False
                stats.of(message).dead_letters["corrupt"] += 1
        return True

    async def _is_reset(self) -> bool:
        """Whether an operator moved the queue; for what keeps it from being pulled, which asks every 10 s."""
        queue = self.process_queue
        if self._context.clock.monotonic() - self._probed_at >= PROBE_SECONDS:
            await self._probe()
        return self.process_queue is not queue

    async def _stop_at(self, block: MessageBlock, corrupt: CorruptMessage) -> None:
        """Take what stands before a corrupt message, and hold the queue there until an operator moves its offset."""
        queue, offset = self.process_queue, corrupt.message.queue_offset
        for message in block.messages:
            if message.queue_offset > offset or (self._tags and not message.has_tag(self._tags)):
                queue.skip(message)
        if self._context.hooks is not None:
            self._let_hooks_choose(block)
        queue.stats.pulled(block)
        queue.put(block, max(offset, queue.next_offset))  # a batch may begin before what was asked for
        self._context.service.submit(queue)
        self.stuck = Problem(
            "corrupt_message",
            f"message at offset {offset} is corrupt: {corrupt.reason}",
            "move the offset with `mqadmin resetOffsetByTime`, or set on_corrupt_message and reload",
        )
        await self.wait_for_operator()

    def _let_hooks_choose(self, block: MessageBlock) -> None:
        hooks = self._context.hooks
        if hooks is not None and hooks.choose:
            for message in hooks.unwanted(block.messages, block.message_queue):
                self.process_queue.skip(message)

    async def _failed(self, error: RmqdError) -> None:
        if isinstance(error, AskedAnewError | ConnectionRenewedError):
            return
        client, before = self._context.client, self.failure
        self.failure = error
        is_again = isinstance(error, SystemBusyError) and isinstance(before, SystemBusyError)
        if not (error.is_told or is_again or isinstance(error, FlowControlError | GoAwayError)):
            log.warning("pull.failed", queue=str(self._queue), error=str(error))
        retry_topic_is_gone = isinstance(error, TopicNotExistError) and is_retry_topic(self._queue.topic)
        if retry_topic_is_gone or isinstance(error, SUBSCRIPTION_AWAY):
            client.heartbeat.beat_soon()  # it makes the retry topic anew, which is deleted together with the group
        if not isinstance(error, BrokerError) or error.stale_route:
            self.request.broker_id = 0
            client.routes.refresh_soon([self._queue.topic])
        if not (isinstance(error, RemotingError) and self.request.has_another()):
            await asyncio.sleep(self._backoff.after(error, at_master=self.request.at_master))

    async def _wait_for_rate(self) -> None:
        """Wait until the group's rate limit lets the next pull through."""
        self.waits_for_rate = True
        try:
            await self._context.rate_limit.wait()
        finally:
            self.waits_for_rate = False

    def apply_pauses(self) -> None:
        """Take over what an operator paused or resumed."""
        queue = self.process_queue
        is_paused = self._context.pauses.hold(self._queue)
        if is_paused and not queue.is_paused:
            queue.pause()
        elif queue.is_paused and not is_paused:
            queue.resume()
            self._context.service.submit(queue)
            if queue.relief is not None and not queue.relief.done():
                queue.relief.set_result(None)

    def _hold_back(self) -> Reason | None:
        if self._context.paused or self.process_queue.is_paused:
            return "paused"
        return exceeded(self.process_queue, self._context.thresholds)

    async def _wait_for_relief(self, reason: Reason) -> None:
        """Wait until the reason to hold back has gone; it is counted once."""
        queue, context = self.process_queue, self._context
        queue.stats.held_back(reason, queue.oldest())
        self.held_by = reason
        self._probed_at = since = context.clock.monotonic()
        try:
            while self.process_queue is queue and self.request.reset_to is None and self._hold_back() == reason:
                self.looked_at = context.clock.monotonic()
                if context.clock.monotonic() - self._probed_at >= PROBE_SECONDS:
                    await self._probe()
                    continue
                await self._relieved(queue)
                since = self._count_hold(queue, reason, since)
        finally:
            self._count_hold(queue, reason, since)
            self.held_by = None

    async def _wait_until_handled(self) -> None:
        """Wait until what is cached from the next offset on is finished, or an operator moves the queue."""
        queue, clock = self.process_queue, self._context.clock
        self._probed_at = clock.monotonic()
        while self.process_queue is queue and self.request.reset_to is None and queue.reaches_past():
            self.looked_at = clock.monotonic()
            if clock.monotonic() - self._probed_at >= PROBE_SECONDS:
                await self._probe()
            else:
                await self._relieved(queue)

    async def _relieved(self, queue: ProcessQueue) -> None:
        """Wait until messages were finished, or for a second."""
        context = self._context
        queue.relief = asyncio.get_running_loop().create_future()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_SECONDS):
                    await (context.resumed.wait() if context.paused else queue.relief)
        finally:
            queue.relief = None

    def _count_hold(self, queue: ProcessQueue, reason: Reason, since: float) -> float:
        now = self._context.clock.monotonic()
        queue.stats.held_for(reason, now - since, queue.oldest())
        return now
