"""Lite topics of one broker: the subscription, its pop requests, and a cache with batches for each lite topic.

One batch of a lite topic, and the messages that must be handled after it.

The cache of one lite topic: handlers get its messages batch by batch, in order.

The pop requests for a parent topic's lite topics at one broker.

A member's lite subscription at one broker, and the start offsets of lite topics that are new to the group.

Brokers keep lite subscriptions only in memory, for three minutes. So the subscription is sent periodically, and at once
after a failed request, because the broker may have restarted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final, Protocol

import structlog

from rmqd.client.api.group_requests import control_lite_subscription
from rmqd.client.api.offset_requests import get_max_offset, query_consumer_offset, update_consumer_offset
from rmqd.codes import RequestCode
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.pop_retries import PopRequest
from rmqd.consumer.pop.receipts import PopProcessQueue, PopReceipts
from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import BrokerAwayError, RmqdError
from rmqd.runtime.clock import wait_within
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.bodies.pop_bodies import LiteSubscription, LiteSubscriptionAction
from rmqd.wire.headers.pop_headers import PopLiteMessageRequestHeader, PopMessageResponseHeader
from rmqd.wire.lite_topic import lite_offset, parse_tries, queue_of
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import CorruptMessage, Message, MessageBlock
from rmqd.wire.messages.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET
from rmqd.wire.receipt_handle import PopHandle, RetryFlag


class LiteBlock(PopBlock):
    """One batch of a lite topic. `rest` are the later messages of the same pop, in order."""

    __slots__ = ("_lite_topic", "rest")

    def __init__(
        self,
        data: bytes,
        queue: MessageQueue,
        topic: str,
        lite_topic: str,
        handle: PopHandle,
        due: float,
        namespace: str,
    ) -> None:
        super().__init__(data, queue, topic, handle, due, namespace)
        self.origin = None
        self._lite_topic = lite_topic
        self.rest: list[Message] = []

    @property
    def lite_topic(self) -> str:
        """The lite topic. Requests about its messages need it in addition to the parent topic."""
        return self._lite_topic

    def holding(self, messages: list[Message], most: int, size_bytes: int) -> LiteBlock:
        """Return a block of the same pop: the first `most` of these messages are its batch, the others its rest."""
        block = LiteBlock(self.data, self.queue, self.topic, self._lite_topic, self.handle, self.due, self.namespace)
        block.decompressed = self.decompressed
        block.messages, block.rest = messages[:most], messages[most:]
        block.unfinished, block.size_bytes = len(block.messages), size_bytes
        for message in block.messages:
            message.block = block
        return block


class PassedOver:
    """How often messages were popped here without a handler call, because an earlier message failed.

    A broker counts every pop of a message as an attempt. Without this correction, messages behind a failed message
    would be dead-lettered at their own first failure.
    """

    def __init__(self) -> None:
        self._times: dict[MessageQueue, Counter[int]] = {}  # counted by offset in the lite topic's queue

    def note(self, queue: MessageQueue, offsets: Iterable[int]) -> None:
        """Record messages that are returned to the broker without a handler call."""
        self._times.setdefault(queue, Counter()).update(offsets)

    def times(self, queue: MessageQueue, offset: int) -> int:
        """Return how often that happened to one message."""
        known = self._times.get(queue)
        return 0 if known is None else known[offset]

    def forget_below(self, queue: MessageQueue, offset: int) -> None:
        """Forget the messages below an offset: they are not redelivered."""
        known = self._times.pop(queue, None)
        if known and (kept := Counter({at: times for at, times in known.items() if at >= offset})):
            self._times[queue] = kept


def place(reply: MessageBlock, message_queue: MessageQueue, tries: str | None, passed_over: PassedOver) -> int:
    """Set the offset in its lite topic and the number of attempts of each message in a response.

    `message_queue` is the requested parent topic on a broker. `tries` is the response's orderCountInfo, which counts
    pops; pops without a handler call are subtracted. Corrupt messages without a lite topic are removed from the
    response; returns their number. Raises ProtocolError. Java: `MQClientAPIImpl.processPopLiteResponse`.
    """
    found = sorted([*reply.messages, *(one.message for one in reply.corrupt)], key=lambda message: message.place)
    for message, times in zip(found, parse_tries(tries, len(found)), strict=True):
        stored = message.stored_properties
        if (name := message.lite_topic) is not None:
            queue = queue_of(message_queue.topic, name, message_queue.broker_name)
            offset = lite_offset(queue, stored.get(INNER_MULTI_DISPATCH), stored.get(INNER_MULTI_QUEUE_OFFSET))
            message.popped_as(offset, max(0, times - passed_over.times(queue, offset)))
    nameless = [one for one in reply.corrupt if one.message.lite_topic is None]
    reply.corrupt = [one for one in reply.corrupt if one.message.lite_topic is not None]
    return len(nameless)


def divided_by_lite_topic(
    reply: MessageBlock, message_queue: MessageQueue, header: PopMessageResponseHeader, due: float, most: int
) -> list[LiteBlock]:
    """Split the messages of a response by lite topic, and each lite topic into a batch of `most` and the rest.

    Call `place` first.
    """
    messages: dict[str, list[Message]] = {}
    corrupt: dict[str, list[CorruptMessage]] = {}
    for message in sorted(reply.messages, key=lambda message: message.place):
        messages.setdefault(message.lite_topic or "", []).append(message)
    for one in reply.corrupt:
        corrupt.setdefault(one.message.lite_topic or "", []).append(one)
    blocks = []
    for name in dict.fromkeys([*messages, *corrupt]):
        queue = queue_of(message_queue.topic, name, message_queue.broker_name)
        handle = PopHandle(
            start_offset=0,
            pop_time=header.pop_time,
            invisible_time=header.invisible_time,
            revive_queue_id=header.revive_qid,
            retry=RetryFlag.NORMAL,
            broker_name=message_queue.broker_name,
            queue_id=queue.queue_id,
            queue_offset=0,
        )
        whole = LiteBlock(reply.data, queue, message_queue.topic, name, handle, due, reply.namespace)
        whole.decompressed = reply.decompressed
        block = whole.holding(messages.get(name, []), most, reply.size_bytes // (len(messages) or 1))
        block.corrupt = corrupt.get(name, [])
        for one in block.corrupt:
            one.message.block = block
        blocks.append(block)
    return blocks


class Following(Protocol):
    """Receives the messages behind a batch."""

    def go_on(self, block: LiteBlock, process_queue: LiteProcessQueue) -> None:
        """Called when the batch was acknowledged: put the messages behind it into the cache."""

    def give_back(self, block: LiteBlock) -> None:
        """Called when the batch was not acknowledged: return the messages behind it to the broker."""


class LiteProcessQueue(PopProcessQueue):
    """Messages of one lite topic that this member popped. Meanwhile, no other member gets messages of it.

    If a batch is acknowledged as a whole, the messages behind it are put into the cache. Otherwise they are returned to
    the broker, which redelivers them after the failed message. This keeps the order.
    """

    __slots__ = ("_following",)

    def __init__(
        self,
        queue: MessageQueue,
        stats: TopicStats,
        namespace: str,
        receipts: PopReceipts,
        relieve: Callable[[], None],
        following: Following,
    ) -> None:
        super().__init__(queue, stats, namespace, receipts, relieve)
        self._following = following

    def put(self, block: MessageBlock, next_offset: int, held: Sequence[Message] = ()) -> None:
        """Add a batch. If the filter rejects all its messages, continue with the messages behind it."""
        assert isinstance(block, LiteBlock)
        is_wanted = bool(block.unfinished)
        super().put(block, next_offset, held)
        if not is_wanted:
            self._follow(block, is_whole=True)

    def _forget(self, block: MessageBlock) -> None:
        assert isinstance(block, LiteBlock)
        is_whole = not block.settled
        super()._forget(block)
        self._follow(block, is_whole=is_whole)

    def _follow(self, block: LiteBlock, *, is_whole: bool) -> None:
        if not block.rest or self.dropped:
            return
        if is_whole and not self.is_releasing and not self._receipts.is_late(block, block.rest[0].queue_offset):
            self._following.go_on(block, self)
        else:
            self._following.give_back(block)


class LitePopRequest(PopRequest):
    """Sends lite pops. They name no lite topics, because the broker knows the subscription."""

    code: ClassVar[int] = int(RequestCode.POP_LITE_MESSAGE)

    def go_by(self, options: ConsumerOptions, subscription: SubscriptionData, most: int) -> None:
        """Use these options for later pops."""
        self._fields = PopLiteMessageRequestHeader(
            client_id=self._client.client_id,
            consumer_group=options.group,
            topic=self._message_queue.topic,
            max_msg_num=most,
            invisible_time=round(options.pop_invisible_time_seconds * 1000),
            poll_time=0,
            born_time=0,
            bname=self._message_queue.broker_name,
        ).ext_fields()


log = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = 30.0  # interval as in the official clients
AFTER_ERROR_SECONDS: Final = 1.0


class LiteSubscribed:
    """The subscription of one member at one broker. `message_queue` names the parent topic and the broker."""

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self._context = context
        self._message_queue = message_queue
        self._founded: set[str] = set()
        self._sooner = asyncio.Event()

    @property
    def wanted(self) -> tuple[str, ...]:
        """The lite topics in the group's current options."""
        return self._context.options.subscriptions[self._message_queue.topic].lite_topics

    def again(self) -> None:
        """Make `keep` send the subscription at once."""
        self._sooner.set()

    async def subscribe(self) -> None:
        """Subscribe to all wanted lite topics, and to no others. Raises RmqdError."""
        wanted = self.wanted
        for lite_topic in wanted:
            if lite_topic not in self._founded:
                await self._found(lite_topic)
                self._founded.add(lite_topic)
        await self._control(LiteSubscriptionAction.COMPLETE_ADD, wanted)

    async def keep(self) -> None:
        """Send the subscription periodically, until cancelled."""
        clock, pause_seconds = self._context.clock, AGAIN_SECONDS
        while True:
            await wait_within(clock, pause_seconds, self._sooner.wait())
            self._sooner.clear()
            try:
                await self.subscribe()
                pause_seconds = AGAIN_SECONDS
            except RmqdError as error:
                pause_seconds = AFTER_ERROR_SECONDS
                if not error.is_reported:
                    log.warning("lite.subscription_failed", queue=str(self._message_queue), error=str(error))

    async def end(self) -> None:
        """Unsubscribe, so that other members get new messages. A broker that does not respond forgets us anyway."""
        try:
            await self._control(LiteSubscriptionAction.COMPLETE_REMOVE, ())
        except RmqdError as error:
            log.debug("lite.not_unsubscribed", queue=str(self._message_queue), error=str(error))

    async def _control(self, action: LiteSubscriptionAction, lite_topics: tuple[str, ...]) -> None:
        context = self._context
        wall_ms = int(context.clock.wall() * 1000)
        told = LiteSubscription(
            action, context.client.client_id, context.options.group, self._message_queue.topic, lite_topics, wall_ms
        )
        await control_lite_subscription(context.client.remoting, self._address(), told)

    async def _found(self, lite_topic: str) -> None:
        """Store the start offset of a lite topic without an offset of the group: its first message, or its end.

        Otherwise the broker would choose at the first pop. A lite topic that is empty now must begin with its next
        message, even if this member is stopped by then.
        """
        context, remoting, address = self._context, self._context.client.remoting, self._address()
        group = context.options.group
        queue = queue_of(self._message_queue.topic, lite_topic, self._message_queue.broker_name)
        if await query_consumer_offset(remoting, address, group, queue) is not None:
            return
        why = context.options.consume_from_where
        offset = 0 if why == "first_offset" else await get_max_offset(remoting, address, queue)
        await update_consumer_offset(remoting, address, group, queue, offset)
        log.info("queue.started", queue=str(queue), offset=offset, why=why)

    def _address(self) -> str:
        address = self._context.client.routes.master(self._message_queue.broker_name)
        if address is None:
            raise BrokerAwayError(self._message_queue.topic, self._message_queue.broker_name)
        return address
