"""Queues in POP mode: how brokers divide them, and one assignment from its first pop to its last acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import structlog

from rmqd.client.api.admin_requests import consume_stats
from rmqd.client.api.pop_requests import query_assignment
from rmqd.consumer.allocate import BROKER_STRATEGY_NAMES
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.pop_loop import PopLoop
from rmqd.consumer.pop.pop_retries import PopRetries
from rmqd.consumer.pop.pop_source import PopSource
from rmqd.consumer.pop.receipts import PopProcessQueue, PopReceipts
from rmqd.consumer.pull.pull_request import repeat_until_answered
from rmqd.consumer.rebalance.rebalance import MemberShare, QueueDivision
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot
from rmqd.errors import PopNotSupportedError, RmqdError, StaticTopicNotPoppedError
from rmqd.errors.broker_errors import RequestCodeNotSupportedError
from rmqd.wire.bodies.pop_bodies import MessageQueueAssignment, MessageRequestMode, QueryAssignmentRequestBody
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

log = structlog.get_logger(__name__)


ACK_INTERVAL_SECONDS: Final = 0.1  # interval of acknowledgements for blocks whose other messages are unfinished
RENEW_AFTER_SHARE: Final = 2 / 3  # after this share of its invisible time, a message is renewed or discarded
RENEW_RETRY_SECONDS: Final = 1.0
MAX_FLUSH_SECONDS: Final = 3.0  # how long the responses to the last acknowledgements may take
MAX_FORCED_FLUSH_SECONDS: Final = 0.5


class PopAssignment(Assignment):
    """Pops messages until its release, and keeps messages in flight invisible to other members.

    At the release, messages that still wait for a handler become visible to other members at once. Messages in flight
    are acknowledged when handlers finish them.
    """

    is_popped = True
    loop: PopLoop

    def __init__(self, context: GroupContext, source: PopSource) -> None:
        super().__init__(context, source.message_queue)
        self.loop = PopLoop(context, source)
        self._source = source
        self._receipts = source.receipts
        self._lag: int | None = None  # unacknowledged messages according to the broker
        self._moved_at = self.loop.moved_at

    @property
    def is_acknowledged(self) -> bool:
        """Whether all popped messages are finished, and the broker has received their acknowledgements."""
        return not self.loop.unacknowledged and self._receipts.is_idle

    async def run(self) -> None:
        log.info("pop.started", queue=str(self.message_queue))
        async with asyncio.TaskGroup() as tasks:
            popping = tasks.create_task(self._pop(), name=f"pops:{self.message_queue}")
            keeping = tasks.create_task(self._keep(tasks), name=f"keep hidden:{self.message_queue}")
            await self._release_signal.begun.wait()
            popping.cancel()
            await asyncio.wait((popping,))
            await self._source.end()
            self._show_waiting()
            await self._release_signal.drain(self.loop.process_queues)
            keeping.cancel()
        for process_queue, block in self.loop.blocks():
            process_queue.acknowledge_finished(block)
            if not process_queue.is_busy:  # no handler has the unfinished messages: they were postponed
                self._receipts.make_visible(block, block.unsettled_offsets(block.all_messages))
        await self._receipts.flush(
            MAX_FORCED_FLUSH_SECONDS if self._release_signal.forced.is_set() else MAX_FLUSH_SECONDS
        )
        for process_queue in self.loop.process_queues:
            process_queue.drop(self._release_signal.cause)

    async def _pop(self) -> None:
        await repeat_until_answered(self._context, self.message_queue, self._source.begin)
        await self.loop.run()

    def _show_waiting(self) -> None:
        """Stop handing out messages. Waiting messages become visible to other members."""
        for process_queue, block in self.loop.blocks():
            if offsets := process_queue.unhandled_offsets(block):
                self._receipts.make_visible(block, offsets)
                process_queue.discard_waiting(block)
        for process_queue in self.loop.process_queues:
            process_queue.start_release()

    async def _keep(self, tasks: asyncio.TaskGroup) -> None:
        """Acknowledge finished messages, and keep messages in flight invisible to other members, until cancelled."""
        while True:
            if not self.loop.unacknowledged:
                self.loop.cached.clear()
                await self.loop.cached.wait()
            await self._context.clock.sleep(ACK_INTERVAL_SECONDS)
            now = self._context.clock.monotonic()
            for process_queue, block in self.loop.blocks():
                process_queue.acknowledge_finished(block)
                if now >= block.renew_at:
                    self._renew_or_discard(tasks, process_queue, block)

    def _renew_or_discard(self, tasks: asyncio.TaskGroup, process_queue: PopProcessQueue, block: PopBlock) -> None:
        """Extend the invisible time of a block's messages in flight, and discard its waiting messages.

        While handler calls are held back (`are_calls_held_back`), keep the waiting messages too. Otherwise another
        member would pop them, and each of them would lose an attempt.
        """
        waiting = [] if self._context.are_calls_held_back else process_queue.unhandled_offsets(block)
        if waiting:
            process_queue.discard_waiting(block)
            self.loop.has_discarded = True
            log.warning(
                "pop.left_to_others",
                queue=str(block.queue),
                messages=len(waiting),
                invisible_seconds=self._context.options.pop_invisible_time_seconds,
            )
        handled = block.unsettled_offsets(message for message in block.messages if not message.finished)
        now = self._context.clock.monotonic()
        held = [offset for offset in handled if now < block.due_of(offset)]
        block.renew_at = float("inf")  # not renewed again until the responses arrive
        if held:
            tasks.create_task(self._renew(block, held), name=f"renew:{block.queue}")

    async def _renew(self, block: PopBlock, offsets: list[int]) -> None:
        seconds = self._context.options.pop_invisible_time_seconds
        invisible_ms = round(seconds * 1000)
        renewed = await asyncio.gather(
            *(self._receipts.extend_invisible_time(block, offset, invisible_ms) for offset in offsets)
        )
        if all(renewed):
            # the new invisible time starts at the request, not at the response
            block.renew_at = min(block.due_of(offset) for offset in offsets) - seconds * (1 - RENEW_AFTER_SHARE)
        else:
            block.renew_at = self._context.clock.monotonic() + RENEW_RETRY_SECONDS

    @property
    def _is_failing(self) -> bool:
        return self.loop.failure is not None and not self.loop.failure.is_reported

    def progress(self) -> object:
        """Return when messages were last finished, or arrived in an empty cache. The value is kept while pops fail."""
        if not self._is_failing:
            self._moved_at = self.loop.moved_at
        return self._moved_at

    def has_work(self) -> bool:
        return self._is_failing or self.loop.unacknowledged > 0

    def snapshot(self) -> QueueSnapshot:
        """Return the known values. Position and committed offset are missing: brokers keep them for popped queues."""
        return replace(self._figures(), lag=self._lag, lag_seconds=self._lag_seconds(self._lag), popped=True)

    async def measure(self) -> None:
        """Query the lag: how many messages of the source the group has not acknowledged."""
        client, message_queue, topic = self._context.client, self.message_queue, self._source.lag_topic
        try:
            address = client.routes.address_for(message_queue)
            stats = await consume_stats(client.remoting, address, self._context.options.group, topic=topic)
        except RmqdError as error:
            log.debug("lag.unknown", queue=str(message_queue), error=str(error))
            return
        self._lag = sum(
            max(0, offsets.broker_offset - offsets.consumer_offset)
            for queue, offsets in stats.offset_table.items()
            if self._source.counts_lag_of(queue)
        )


class DivisionByBroker(QueueDivision):
    """A broker decides which queues a member pops or pulls (QUERY_ASSIGNMENT, 400).

    All members query the first available broker of a topic, so that their shares do not overlap.
    """

    def __init__(self, context: GroupContext, receipts: PopReceipts) -> None:
        super().__init__(context)
        self._client = context.client
        self._receipts = receipts
        self._retries = PopRetries(context)
        self._group = context.options.group
        strategy = context.options.allocate_strategy.name
        self._strategy = BROKER_STRATEGY_NAMES.get(strategy, strategy)
        self._modes: dict[str, MessageRequestMode] = {}  # topic -> mode in the last response

    def begin(self, tasks: asyncio.TaskGroup, changed: Callable[[], None]) -> list[asyncio.Task[None]]:
        """Called when the member joins. Return tasks that send acknowledgements and check pop retry topics."""
        return [
            tasks.create_task(self._receipts.run(), name=f"acks:{self._group}"),
            tasks.create_task(self._retries.run(self._modes, changed), name=f"pop retries:{self._group}"),
        ]

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> MemberShare | None:
        """Return the share that a broker assigns to this member; None while no broker responds.

        Raises PopNotSupportedError if all responding brokers are too old to assign queues, and
        StaticTopicNotPoppedError if the topic is static.
        """
        if self._retries.finish_reading(topic, held):
            return MemberShare()
        told = await self._ask_brokers(topic)
        if told is None:
            return None
        popped = frozenset(one.queue for one in told if one.mode is MessageRequestMode.POP)
        if popped and (route := self._client.routes.route(topic)) is not None and route.mappings:
            raise StaticTopicNotPoppedError(topic)
        # In POP mode every member gets queues, so an empty response means PULL. A pulling member without queues also
        # subscribes to pop retry topics: the last heartbeat of any member determines the group's subscriptions.
        mode = MessageRequestMode.POP if popped else MessageRequestMode.PULL
        if self._modes.get(topic) != mode:
            self._modes[topic] = mode
            if not is_retry_topic(topic):  # retry topics are always pulled
                log.info("pop.mode_changed", topic=topic, mode=mode.value)
        return MemberShare(pulled=frozenset(one.queue for one in told) - popped, popped=popped)

    def create_assignment(self, message_queue: MessageQueue, *, is_popped: bool) -> Assignment:
        if not is_popped:
            return super().create_assignment(message_queue, is_popped=False)
        return PopAssignment(self._context, PopSource(self._context, self._receipts, message_queue))

    async def _ask_brokers(self, topic: str) -> tuple[MessageQueueAssignment, ...] | None:
        client = self._client
        too_old: RequestCodeNotSupportedError | None = None
        for name in sorted(client.routes.broker_names(topic)):
            address = client.routes.address(name)
            if address is None:
                continue
            try:
                if told := await self._ask(address, topic):
                    return told
                # a broker that does not know this member returns no queues, or an error
                await client.heartbeat.send_heartbeat_to(address)
                return await self._ask(address, topic)
            except RequestCodeNotSupportedError as error:
                too_old = error
            except RmqdError as error:
                if not error.is_reported:
                    log.warning("pop.assignment_failed", topic=topic, address=address, error=str(error))
        if too_old is not None:
            raise PopNotSupportedError(self._group, too_old.address)
        return None

    async def _ask(self, address: str, topic: str) -> tuple[MessageQueueAssignment, ...] | None:
        body = QueryAssignmentRequestBody(topic, self._group, self._client.client_id, self._strategy)
        return await query_assignment(self._client.remoting, address, body)
