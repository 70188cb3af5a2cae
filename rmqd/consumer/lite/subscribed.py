"""A member's lite subscription at one broker, and the start offsets of lite topics that are new to the group.

Brokers keep lite subscriptions only in memory, for three minutes. So the subscription is sent periodically, and at once
after a failed request, because the broker may have restarted.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from rmqd.client.api.lite import control_lite_subscription
from rmqd.client.api.offset import get_max_offset, query_consumer_offset, update_consumer_offset
from rmqd.clock import wait_within
from rmqd.consumer.context import GroupContext
from rmqd.errors import BrokerAwayError, RmqdError
from rmqd.wire.bodies.lite import LiteSubscription, LiteSubscriptionAction
from rmqd.wire.lite import queue_of
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

AGAIN_SECONDS: Final = 30.0  # same as the official clients
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

    async def tell(self) -> None:
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
                await self.tell()
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
