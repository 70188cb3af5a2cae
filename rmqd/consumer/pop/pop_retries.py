"""Retries of popped messages, while a group pops and after it was switched to pull.

A message that was popped and not acknowledged moves to a pop retry topic. Brokers return it to later pops, but not to
pulls of the original topic. An administrator may switch a group from POP to PULL, or change its `consume_mode`. Then
the group also pulls its pop retry topics, in both forms of their names, until they stay empty for the invisible time.
After that it checks them from time to time, because a retry can arrive up to two hours after its message was sent back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog

from rmqd.client.api.admin_requests import request_modes
from rmqd.client.api.offset_requests import get_max_offset, query_consumer_offset
from rmqd.client.instance import ClientInstance
from rmqd.consumer.context import GroupContext
from rmqd.consumer.handling.send_back import DELAY_LEVEL_SECONDS, SendBack
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.rebalance.rebalance import MemberShare, QueueDivision
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import RequestCodeNotSupportedError
from rmqd.wire.bodies.heartbeat_data import tag_subscription
from rmqd.wire.bodies.pop_bodies import MessageRequestMode
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import SUBSCRIPTION_ALL, pop_retry_topic, pop_retry_topic_v2, retry_topic

log = structlog.get_logger(__name__)

RETRY_TOPIC_POLL_SECONDS: Final = 10.0


class PopRetries:
    """Adds pop retry topics with messages to the group's subscriptions, and removes them when they stay empty."""

    def __init__(self, context: GroupContext) -> None:
        self.ending_topics: set[str] = set()  # pop retry topics whose queues are being released
        self._context = context
        self._client = context.client
        self._group = context.options.group
        self._empty_since: dict[str, float] = {}  # pop retry topic -> when it was first found empty (monotonic)
        self._watched: set[str] = set()  # pop retry topics whose routes the client refreshes

    async def run(self, modes: Mapping[str, MessageRequestMode], changed: Callable[[], None]) -> None:
        """Check the pop retry topics of all topics periodically. `changed` is called when the subscriptions change."""
        try:
            while True:
                for topic in list(self._context.options.subscriptions):
                    pulled = modes.get(topic) is MessageRequestMode.PULL
                    for retry in (pop_retry_topic(self._group, topic), pop_retry_topic_v2(self._group, topic)):
                        if await self._look(retry, pulled=pulled):
                            changed()
                await self._context.clock.sleep(RETRY_TOPIC_POLL_SECONDS)
        finally:
            for retry in self._watched:
                self._client.routes.unwatch(retry)

    async def _look(self, retry: str, *, pulled: bool) -> bool:
        """Start or stop reading one pop retry topic. Returns whether the group's subscriptions changed."""
        is_read = retry in self._context.subscriptions
        if not pulled:
            if is_read:
                self.ending_topics.add(retry)
            return is_read
        try:
            waits = await self._has_messages(retry)
        except RmqdError as error:
            log.debug("pop.retries_unknown", topic=retry, error=str(error))
            return False
        now = self._context.clock.monotonic()
        if waits:
            self._empty_since.pop(retry, None)
            self.ending_topics.discard(retry)
            if not is_read:
                await self._begin(retry)
            return not is_read
        empty_since = self._empty_since.setdefault(retry, now)
        if is_read and now - empty_since >= self._context.options.pop_invisible_time_seconds:
            self.ending_topics.add(retry)
            return True
        return False

    async def _has_messages(self, retry: str) -> bool:
        """Return whether a pop retry topic has messages that the group has not finished. Raises RmqdError."""
        if retry not in self._watched:  # the client does not refresh this topic's route automatically
            await self._client.routes.refresh(retry)
        remoting, routes = self._client.remoting, self._client.routes
        for queue in routes.queues(retry):
            address = routes.address_for(queue)
            end, done = await asyncio.gather(
                get_max_offset(remoting, address, queue), query_consumer_offset(remoting, address, self._group, queue)
            )
            if end > (done or 0):
                return True
        return False

    async def _begin(self, retry: str) -> None:
        context = self._context
        log.info("pop.retries_begun", topic=retry)
        self._client.routes.watch(retry)
        self._watched.add(retry)
        context.stats.setdefault(retry, context.stats[retry_topic(self._group)])
        subscription = tag_subscription(retry, SUBSCRIPTION_ALL, int(context.clock.wall() * 1000))
        # brokers must know the subscription before the next rebalance assigns the topic's queues
        await context.announce_subscriptions({retry: subscription})
        context.subscriptions[retry] = subscription

    def finish_reading(self, topic: str, held: Collection[MessageQueue]) -> bool:
        """Return whether the group stops reading this pop retry topic. If no queue is `held` any more, unsubscribe."""
        if topic not in self.ending_topics:
            return False
        if not held:
            self._ended(topic)
        return True

    def _ended(self, retry: str) -> None:
        log.info("pop.retries_ended", topic=retry)
        self.ending_topics.discard(retry)
        self._context.subscriptions.pop(retry, None)
        self._watched.discard(retry)
        self._client.routes.unwatch(retry)
        self._client.heartbeat.send_heartbeats_soon()


MODE_QUERY_SECONDS: Final = 10.0


class PopRetriesDivision(QueueDivision):
    """Divides queues as usual, including the pop retry topics of a group that popped before.

    An administrator must enable POP for a group. Brokers store this setting, so one query to each broker is enough.
    """

    def __init__(self, context: GroupContext) -> None:
        super().__init__(context)
        self._retries = PopRetries(context)
        self._modes: dict[str, MessageRequestMode] = {}  # the group may have popped messages of these topics
        self._asked: set[str] = set()  # addresses of brokers that responded

    def begin(self, tasks: asyncio.TaskGroup, changed: Callable[[], None]) -> list[asyncio.Task[None]]:
        """Called when the member joins. Return tasks that find popped topics and check their pop retry topics."""
        group = self._context.options.group
        reading = self._retries.run(self._modes, changed)
        return [
            *super().begin(tasks, changed),
            tasks.create_task(self._ask_brokers(), name=f"former pops:{group}"),
            tasks.create_task(reading, name=f"pop retries:{group}"),
        ]

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> MemberShare | None:
        """Return this member's share. It is empty for a pop retry topic that is not read any more."""
        if self._retries.finish_reading(topic, held):
            return MemberShare()
        return await super().share_of(topic, queues, client_ids, held)

    async def _ask_brokers(self) -> None:
        context = self._context
        while True:
            for address in context.brokers().values():
                if address not in self._asked:
                    await self._ask(address)
            await context.clock.sleep(MODE_QUERY_SECONDS)

    async def _ask(self, address: str) -> None:
        options = self._context.options
        try:
            told = await request_modes(self._context.client.remoting, address)
        except RequestCodeNotSupportedError:  # the broker does not support POP
            told = {}
        except RmqdError as error:
            log.debug("pop.modes_unknown", address=address, error=str(error))
            return
        self._asked.add(address)
        topics = {topic for topic, group in told if group == options.group}
        self._modes |= dict.fromkeys(topics & options.subscriptions.keys(), MessageRequestMode.PULL)


# Java: popDelayLevel; the default level is the number of earlier attempts
POP_DELAY_LEVEL_SECONDS: Final = DELAY_LEVEL_SECONDS[2:]


class PopSendBack(SendBack):
    """Sends retries and dead letters of a group in POP mode. Pulled messages are sent back as in other groups."""

    def __init__(self, client: ClientInstance, group: str, max_reconsume_times: int, receipts: PopReceipts) -> None:
        super().__init__(client, group, max_reconsume_times)
        self._receipts = receipts

    def delay_level(self, message: Message, asked: int) -> int:
        """Return the level of a retry. For a popped message it is an index into POP_DELAY_LEVEL_SECONDS."""
        if not isinstance(message.block, PopBlock):
            return super().delay_level(message, asked)
        return min(asked or message.reconsume_times, len(POP_DELAY_LEVEL_SECONDS) - 1)

    def delay_seconds(self, message: Message, level: int) -> float:
        """Return the invisible time of a popped message at a level."""
        is_popped = isinstance(message.block, PopBlock)
        return POP_DELAY_LEVEL_SECONDS[max(level, 0)] if is_popped else super().delay_seconds(message, level)

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Retry the message. If the request fails, the message is redelivered when its invisible time is over."""
        block = message.block
        if not isinstance(block, PopBlock):
            # a broker's copy of a message in a pop retry topic would lose its original topic
            sent = block.origin is not None and await self._to_retry_topic(message, delay_level)
            return sent or await super().retry(message, delay_level)
        seconds = self.delay_seconds(message, self.delay_level(message, delay_level))
        await self._receipts.retry_later(block, message.queue_offset, seconds)
        return True
