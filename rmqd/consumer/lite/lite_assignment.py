"""Assignments of lite topics: subscribe and pop at each broker, and find the brokers that serve the lite topics.

Brokers keep lite subscriptions only in memory, for three minutes. So the subscription is sent periodically, and at once
after a failed request, because the broker may have restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Final

import structlog

from rmqd.client.api.admin_requests import topic_config
from rmqd.client.api.group_requests import control_lite_subscription, subscription_group
from rmqd.client.api.offset_requests import get_max_offset, query_consumer_offset, update_consumer_offset
from rmqd.codes import RequestCode
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.health.group_problems import update_group_command
from rmqd.consumer.lite.lite_queues import LiteProcessQueue, UnhandledPops, blocks_by_lite_topic, set_popped_offsets
from rmqd.consumer.pop.pop_assignment import PopAssignment
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.pop_source import PopSource
from rmqd.consumer.pop.receipts import PopProcessQueue, PopReceipts
from rmqd.consumer.rebalance.rebalance import MemberShare, QueueDivision
from rmqd.errors import LiteTopicsRefusedError, RmqdError
from rmqd.runtime.clock import wait_within
from rmqd.wire.bodies.config_bodies import LITE, MESSAGE_TYPE, SubscriptionGroupConfig
from rmqd.wire.bodies.pop_bodies import LiteSubscription, LiteSubscriptionAction
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop_headers import (
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
    PopMessageResponseHeader,
)
from rmqd.wire.lite_topic import (
    BIND_TOPIC_ATTRIBUTE,
    MODEL_ATTRIBUTE,
    SHARED_MODEL,
    WILDCARD_ATTRIBUTE,
    lite_topic_queue,
    parent_topic_of,
)
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.receipt_handle import ANY_QUEUE_ID

log = structlog.get_logger(__name__)

SYNC_INTERVAL_SECONDS: Final = 30.0  # how often the subscription is sent; as in the official clients
ERROR_PAUSE_SECONDS: Final = 1.0


class LiteSource(PopSource):
    """The lite topics that one member subscribed to at one broker. `message_queue` names the parent topic.

    Each lite topic with messages has a separate cache.
    """

    code: ClassVar[int] = int(RequestCode.POP_LITE_MESSAGE)
    keeps_order: ClassVar[bool] = True

    def __init__(self, context: GroupContext, receipts: PopReceipts, message_queue: MessageQueue) -> None:
        super().__init__(context, receipts, message_queue)
        self._started: set[str] = set()  # lite topics whose start offset the broker has stored
        self._sooner = asyncio.Event()
        self._passed_over = UnhandledPops()

    async def begin(self) -> None:
        """Store missing start offsets, and subscribe to exactly the configured lite topics. Raises RmqdError."""
        wanted = self._context.options.subscriptions[self.message_queue.topic].lite_topics
        for lite_topic in wanted:
            if lite_topic not in self._started:
                await self._store_start(lite_topic)
                self._started.add(lite_topic)
        await self._control(LiteSubscriptionAction.COMPLETE_ADD, wanted)

    async def maintain(self) -> None:
        """Send the subscription periodically, until cancelled."""
        clock, pause_seconds = self._context.clock, SYNC_INTERVAL_SECONDS
        while True:
            await wait_within(clock, pause_seconds, self._sooner.wait())
            self._sooner.clear()
            try:
                await self.begin()
                pause_seconds = SYNC_INTERVAL_SECONDS
            except RmqdError as error:
                pause_seconds = ERROR_PAUSE_SECONDS
                if not error.is_reported:
                    log.warning("lite.subscription_failed", queue=str(self.message_queue), error=str(error))

    def refresh(self) -> None:
        """Send the subscription at once: it has changed, or the broker may have restarted and lost it."""
        self._sooner.set()

    async def end(self) -> None:
        """Unsubscribe, so that other members get new messages. Otherwise the subscription ends after three minutes."""
        try:
            await self._control(LiteSubscriptionAction.COMPLETE_REMOVE, ())
        except RmqdError as error:
            log.debug("lite.not_unsubscribed", queue=str(self.message_queue), error=str(error))

    def fields(self, most: int) -> dict[str, str]:
        """Return the request fields of a pop. They name no lite topics, because the broker knows the subscription."""
        options = self._context.options
        return PopLiteMessageRequestHeader(
            client_id=self._context.client.client_id,
            consumer_group=options.group,
            topic=self.message_queue.topic,
            max_msg_num=most,
            invisible_time=round(options.pop_invisible_time_seconds * 1000),
            poll_time=0,
            born_time=0,
            bname=self.message_queue.broker_name,
        ).ext_fields()

    def read(self, reply: RemotingCommand) -> tuple[PopMessageResponseHeader, MessageBlock]:
        """Return a response's header and messages. Sets each message's offset in its lite topic, and its attempts."""
        lite = PopLiteMessageResponseHeader.from_ext_fields(reply.ext_fields)
        header = PopMessageResponseHeader(
            pop_time=lite.pop_time,
            invisible_time=lite.invisible_time,
            revive_qid=lite.revive_qid,
            rest_num=0,  # a response to POP_LITE_MESSAGE does not contain this number
            order_count_info=lite.order_count_info,
        )
        block = self._framed(reply)
        if left_out := set_popped_offsets(block, self.message_queue, header.order_count_info, self._passed_over):
            # messages without a lite topic cannot be acknowledged, and stay invisible until their invisible time ends
            log.warning("pop.doubted", queue=str(self.message_queue), reason=f"{left_out} messages have no lite topic")
        return header, block

    def divide_into_blocks(self, found: MessageBlock, header: PopMessageResponseHeader, due: float) -> list[PopBlock]:
        options = self._context.options
        # a batch with messages of both handlers would be divided, and its parts handled at once
        has_two_handlers = options.canary is not None and options.canary.mode == "live"
        most = 1 if has_two_handlers else options.consume_message_batch_max_size
        return [*blocks_by_lite_topic(found, self.message_queue, header, due, most)]

    def record_unhandled(self, queue: MessageQueue, offsets: list[int]) -> None:
        self._passed_over.record(queue, offsets)

    def create_cache(
        self, queue: MessageQueue, put: Callable[[PopBlock, PopProcessQueue], None], on_room: Callable[[], None]
    ) -> PopProcessQueue:
        stats, namespace = self._context.stats[self.message_queue.topic], self._context.options.namespace
        return LiteProcessQueue(queue, stats, namespace, self.receipts, on_room, put, self._passed_over)

    @property
    def lag_topic(self) -> str:
        """Empty, to request the lag of all topics: at the broker, each lite topic has a separate offset."""
        return ""

    def counts_lag_of(self, queue: MessageQueue) -> bool:
        return parent_topic_of(queue.topic) == self.message_queue.topic

    async def _control(self, action: LiteSubscriptionAction, lite_topics: tuple[str, ...]) -> None:
        context = self._context
        wall_ms = int(context.clock.wall() * 1000)
        told = LiteSubscription(
            action, context.client.client_id, context.options.group, self.message_queue.topic, lite_topics, wall_ms
        )
        await control_lite_subscription(context.client.remoting, self._address(), told)

    async def _store_start(self, lite_topic: str) -> None:
        """If the group has no offset in this lite topic, store one: 0, or the lite topic's end.

        Otherwise the broker would choose the offset at the first pop. A lite topic that is empty now must start with
        its next message, even if this member has stopped by then.
        """
        context, remoting, address = self._context, self._context.client.remoting, self._address()
        group = context.options.group
        queue = lite_topic_queue(self.message_queue.topic, lite_topic, self.message_queue.broker_name)
        if await query_consumer_offset(remoting, address, group, queue) is not None:
            return
        why = context.options.consume_from_where
        offset = 0 if why == "first_offset" else await get_max_offset(remoting, address, queue)
        await update_consumer_offset(remoting, address, group, queue, offset)
        log.info("queue.started", queue=str(queue), offset=offset, why=why)

    def _address(self) -> str:
        return self._context.client.routes.master_for(self.message_queue.topic, self.message_queue.broker_name)


class LiteDivision(QueueDivision):
    """Finds the brokers that serve the group's lite topics. A broker itself divides messages among its subscribers."""

    def __init__(self, context: GroupContext, receipts: PopReceipts) -> None:
        super().__init__(context)
        self._receipts = receipts
        self._served: set[str] = set()  # names of the brokers that serve the lite topics

    def begin(self, tasks: asyncio.TaskGroup, changed: Callable[[], None]) -> list[asyncio.Task[None]]:
        return [tasks.create_task(self._receipts.run(), name=f"acks:{self._context.options.group}")]

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> MemberShare | None:
        """Return one popped queue for each broker that serves the lite topics; None while no broker responds.

        Raises LiteTopicsRefusedError if the topic or the group is not set up for lite topics.
        """
        names = sorted({queue.broker_name for queue in queues})
        ready = [name for name in names if name in self._served or await self._is_served(topic, name)]
        if names and not ready:
            return None
        return MemberShare(popped=frozenset(MessageQueue(topic, name, ANY_QUEUE_ID) for name in ready))

    def create_assignment(self, message_queue: MessageQueue, *, is_popped: bool) -> Assignment:
        assert is_popped
        source = LiteSource(self._context, self._receipts, message_queue._replace(queue_id=ANY_QUEUE_ID))
        return PopAssignment(self._context, source)

    async def _is_served(self, topic: str, broker_name: str) -> bool:
        client, group = self._context.client, self._context.options.group
        address = client.routes.master(broker_name)
        if address is None:
            return False
        try:
            attributes = (await topic_config(client.remoting, address, topic)).attributes
            settings = await subscription_group(client.remoting, address, group)
        except RmqdError as error:
            if not error.is_reported:
                log.warning("lite.unknown", topic=topic, address=address, error=str(error))
            return False
        _check_topic(topic, broker_name, attributes.get(MESSAGE_TYPE))
        _check_group(settings, topic, broker_name)
        self._served.add(broker_name)
        return True


def _check_topic(topic: str, broker_name: str, message_type: str | None) -> None:
    if message_type != LITE:
        raise LiteTopicsRefusedError(
            f"lite_topics needs a topic of message type {LITE}, but {topic} on {broker_name} has type "
            f"{message_type or 'NORMAL'}; create one with `mqadmin updateTopic -t TOPIC -a +{MESSAGE_TYPE}={LITE}` on "
            f"brokers of RocketMQ 5.5 or later, or subscribe to {topic} by tags"
        )


def _check_group(settings: SubscriptionGroupConfig, topic: str, broker_name: str) -> None:
    group, attributes = settings.group_name, settings.attributes
    bound = attributes.get(BIND_TOPIC_ATTRIBUTE)
    if bound != topic:
        is_bound = f"is bound to {bound}" if bound else "is not bound to a topic"
        raise LiteTopicsRefusedError(
            f"lite_topics needs a group that is bound to {topic}, but {group} on {broker_name} {is_bound}; "
            f"bind it with {update_group_command(settings, f'+{BIND_TOPIC_ATTRIBUTE}={topic}')}"
        )
    if WILDCARD_ATTRIBUTE in attributes:
        raise LiteTopicsRefusedError(
            f"{group} on {broker_name} is a group for all lite topics ({WILDCARD_ATTRIBUTE}): brokers would send all "
            "of them, not only those in lite_topics; use another group"
        )
    if (model := attributes.get(MODEL_ATTRIBUTE, SHARED_MODEL)) != SHARED_MODEL:
        raise LiteTopicsRefusedError(
            f"{group} on {broker_name} has {MODEL_ATTRIBUTE}={model}, but members of rmqd share lite topics; "
            f"run {update_group_command(settings, f'+{MODEL_ATTRIBUTE}={SHARED_MODEL}')}"
        )
