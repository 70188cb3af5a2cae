"""Which lite topics this member has told one broker that it wants, and where those begin that are new to the group.

Brokers keep lite subscriptions in memory only, for three minutes. So all of them are told again and again, and at once
after an answer that did not come: the broker may have been started anew.
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

AGAIN_SECONDS: Final = 30.0  # as the official clients
AFTER_ERROR_SECONDS: Final = 1.0


class LiteSubscribed:
    """The subscription of one member at one broker; `message_queue` names the parent topic and the broker."""

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self._context = context
        self._message_queue = message_queue
        self._founded: set[str] = set()
        self._sooner = asyncio.Event()

    @property
    def wanted(self) -> tuple[str, ...]:
        """The lite topics that the group's options name now."""
        return self._context.options.subscriptions[self._message_queue.topic].lite_topics

    def again(self) -> None:
        """Have `keep` tell the broker at once."""
        self._sooner.set()

    async def tell(self) -> None:
        """Tell the broker which lite topics are wanted: all of them, and no others. Raises RmqdError."""
        wanted = self.wanted
        for lite_topic in wanted:
            if lite_topic not in self._founded:
                await self._found(lite_topic)
                self._founded.add(lite_topic)
        await self._control(LiteSubscriptionAction.COMPLETE_ADD, wanted)

    async def keep(self) -> None:
        """Tell the broker again and again, until cancelled."""
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
        """Want no lite topics any more: what comes goes to other members. A broker that does not answer forgets us."""
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
        """Store where a lite topic begins that the group has no offset of: at its first message, or after its last.

        Otherwise the broker would choose, at the first pop; and one that is empty now begins with what comes next, also
        where this member is away by then.
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
