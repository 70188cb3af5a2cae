"""Unfinished popped messages of a group that pulls now: it reads its pop retry topics while it pulls the topic itself.

A message that was popped and not acknowledged moves to a pop retry topic. Brokers return it to later pops, but not to
pulls of the original topic. So when an administrator switches a group from POP to PULL, the group also pulls its pop
retry topics, in both forms of their names, until they stay empty for the invisible time. After that it checks them from
time to time, because a retry can arrive up to two hours after its message was sent back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from rmqd.client.api.offset import get_max_offset, query_consumer_offset
from rmqd.consumer.announcing import announce
from rmqd.consumer.context import GroupContext
from rmqd.errors import RmqdError, RouteNotFoundError
from rmqd.wire.bodies.pop import MessageRequestMode
from rmqd.wire.filter import tag_subscription
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import SUBSCRIPTION_ALL, pop_retry_topic, pop_retry_topic_v2, retry_topic

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 10.0


class PopRetries:
    """Adds pop retry topics to the group's subscriptions, and removes them again."""

    def __init__(self, context: GroupContext) -> None:
        self.ending: set[str] = set()  # topics whose queues are being released
        self._context = context
        self._client = context.client
        self._group = context.options.group
        self._empty_since: dict[str, float] = {}
        self._watched: set[str] = set()

    async def run(self, modes: Mapping[str, MessageRequestMode], changed: Callable[[], None]) -> None:
        """Check every few seconds, until cancelled. `changed` is called after a change of the subscriptions."""
        try:
            while True:
                for topic in list(self._context.options.subscriptions):
                    pulled = modes.get(topic) is MessageRequestMode.PULL
                    for retry in (pop_retry_topic(self._group, topic), pop_retry_topic_v2(self._group, topic)):
                        if await self._look(retry, pulled=pulled):
                            changed()
                await self._context.clock.sleep(LOOK_SECONDS)
        finally:
            for retry in self._watched:
                self._client.routes.unwatch(retry)

    async def _look(self, retry: str, *, pulled: bool) -> bool:
        """Start or stop reading one pop retry topic. Returns whether the group's subscriptions changed."""
        is_read = retry in self._context.subscriptions
        if not pulled:
            if is_read:
                self.ending.add(retry)
            return is_read
        try:
            waits = await self._has_messages(retry)
        except RmqdError as error:
            log.debug("pop.retries_unknown", topic=retry, error=str(error))
            return False
        now = self._context.clock.monotonic()
        if waits:
            self._empty_since.pop(retry, None)
            self.ending.discard(retry)
            if not is_read:
                await self._begin(retry)
            return not is_read
        empty_since = self._empty_since.setdefault(retry, now)
        if is_read and now - empty_since >= self._context.options.pop_invisible_time_seconds:
            self.ending.add(retry)
            return True
        return False

    async def _has_messages(self, retry: str) -> bool:
        """Whether a pop retry topic has messages that the group has not finished. Raises RmqdError."""
        if retry not in self._watched:  # nothing else refreshes its route, and a broker may have been unreachable
            await self._client.routes.refresh(retry)
        for queue in self._client.routes.queues(retry):
            address = self._client.routes.address(queue.broker_name)
            if address is None:
                raise RouteNotFoundError(retry, f"no address is known for broker {queue.broker_name}")
            if await self._is_behind(address, queue):
                return True
        return False

    async def _is_behind(self, address: str, queue: MessageQueue) -> bool:
        remoting = self._client.remoting
        end, done = await asyncio.gather(
            get_max_offset(remoting, address, queue), query_consumer_offset(remoting, address, self._group, queue)
        )
        return end > (done or 0)

    async def _begin(self, retry: str) -> None:
        context = self._context
        log.info("pop.retries_begun", topic=retry)
        self._client.routes.watch(retry)
        self._watched.add(retry)
        context.stats.setdefault(retry, context.stats[retry_topic(self._group)])
        subscription = tag_subscription(retry, SUBSCRIPTION_ALL, int(context.clock.wall() * 1000))
        await announce(context, {retry: subscription})  # first: its queues can be assigned and pulled at any time
        context.subscriptions[retry] = subscription

    def is_over(self, topic: str, held: Collection[MessageQueue]) -> bool:
        """Whether reading this pop retry topic ends. The end is complete when none of its queues is `held`."""
        if topic not in self.ending:
            return False
        if not held:
            self._ended(topic)
        return True

    def _ended(self, retry: str) -> None:
        log.info("pop.retries_ended", topic=retry)
        self.ending.discard(retry)
        self._empty_since.pop(retry, None)
        self._context.subscriptions.pop(retry, None)
        self._watched.discard(retry)
        self._client.routes.unwatch(retry)
        self._client.heartbeat.beat_soon()
