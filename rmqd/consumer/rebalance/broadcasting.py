"""The special parts of a broadcasting group: every member consumes every queue, and nothing is redelivered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.context import GroupContext
from rmqd.consumer.services import Ownership
from rmqd.handler_api.batch import ENDLESS, EndlessLease
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message

log = structlog.get_logger(__name__)

NO_LIMIT: Final = -1


class EveryQueue(Ownership):
    """The ownership in a broadcasting group. In an orderly group each member keeps the order within a queue."""

    def lease(self, queue: MessageQueue) -> EndlessLease:
        """Return the lease of an orderly group's batch, which never ends."""
        return ENDLESS


class NoRetry:
    """Drops a message after its last attempt and logs it: the group has neither a retry topic nor dead letters.

    In a concurrent group the first failure is the last attempt, as in Java. An orderly group retries in place first.
    """

    limit = "broadcasting groups have no retries"

    def __init__(self, options: ConsumerOptions) -> None:
        self._max = options.max_reconsume_times if options.consume_mode == "orderly" else 0
        if self._max > 0:
            self.limit = "max_reconsume_times reached"

    def is_last_attempt(self, message: Message, not_counted: int = 0) -> bool:
        """Return whether the message is dropped if this attempt fails."""
        return self._max != NO_LIMIT and message.reconsume_times - not_counted >= self._max

    def delay_level(self, message: Message, asked: int) -> int:
        """Return `asked`, which is not used, because nothing is sent back."""
        return asked

    def delay_seconds(self, message: Message, level: int) -> float:
        return 0.0

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Drop the message, because redelivery is impossible. Callers check `is_last_attempt` first."""
        return await self.dead_letter(message, self.limit, None)

    async def dead_letter(self, message: Message, reason: str, error: BaseException | None) -> bool:
        """Drop the message."""
        log.warning(
            "message.dropped",
            queue=str(message.message_queue),
            offset=message.queue_offset,
            msg_id=message.msg_id,
            reason=reason,
        )
        return True


async def announce(context: GroupContext, subscriptions: Mapping[str, SubscriptionData]) -> None:
    """Send new or changed subscriptions, by topic, to every broker. The caller must then apply them at once.

    Brokers refuse pulls for a subscription that they do not know. A broker that does not respond learns the
    subscriptions from its next heartbeat.
    """
    context.announced.update(subscriptions)
    try:
        await context.client.heartbeat.beat()
    finally:
        for topic in subscriptions:
            context.announced.pop(topic, None)
