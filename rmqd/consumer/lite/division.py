"""Assignment of lite topics: every member pops the lite topics that it subscribed to, at every broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import structlog

from rmqd.client.api.admin import topic_config
from rmqd.client.api.group import subscription_group
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.lite.assignment import LiteAssignment
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.rebalance.division import Division, Share
from rmqd.errors import LiteTopicsRefusedError, RmqdError
from rmqd.wire.lite import BIND_TOPIC, MODEL, SHARED, WILDCARD
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.pop import ANY_QUEUE
from rmqd.wire.topic_kinds import LITE, MESSAGE_TYPE

log = structlog.get_logger(__name__)


class LiteDivision(Division):
    """Checks which brokers serve the group's lite topics. A broker divides each lite topic among its subscribers."""

    def __init__(self, context: GroupContext, receipts: PopReceipts) -> None:
        super().__init__(context)
        self._receipts = receipts
        self._served: set[str] = set()  # brokers that serve them

    def begin(self, tasks: asyncio.TaskGroup, changed: Callable[[], None]) -> list[asyncio.Task[None]]:
        """Start to send acknowledgements."""
        return [tasks.create_task(self._receipts.run(), name=f"acks:{self._context.options.group}")]

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> Share | None:
        """Return all lite topics at each broker of the parent topic; None while no broker responds.

        Raises LiteTopicsRefusedError if the topic or the group is not set up for lite topics.
        """
        names = sorted({queue.broker_name for queue in queues})
        ready = [name for name in names if name in self._served or await self._is_served(topic, name)]
        if names and not ready:
            return None
        return Share(popped=frozenset(MessageQueue(topic, name, ANY_QUEUE) for name in ready))

    def assignment(self, message_queue: MessageQueue, *, is_popped: bool) -> Assignment:
        """Return the assignment for a broker of a share."""
        assert is_popped
        return LiteAssignment(self._context, self._receipts, replace(message_queue, queue_id=ANY_QUEUE))

    async def _is_served(self, topic: str, broker_name: str) -> bool:
        client, group = self._context.client, self._context.options.group
        address = client.routes.master(broker_name)
        if address is None:
            return False
        try:
            attributes = (await topic_config(client.remoting, address, topic)).attributes
            group_attributes = (await subscription_group(client.remoting, address, group)).attributes
        except RmqdError as error:
            if not error.is_reported:
                log.warning("lite.unknown", topic=topic, address=address, error=str(error))
            return False
        _check_topic(topic, broker_name, attributes.get(MESSAGE_TYPE))
        _check_group(group, topic, broker_name, group_attributes)
        self._served.add(broker_name)
        return True


def _check_topic(topic: str, broker_name: str, message_type: str | None) -> None:
    if message_type != LITE:
        raise LiteTopicsRefusedError(
            f"lite_topics needs a topic of message type {LITE}, but {topic} on {broker_name} has type "
            f"{message_type or 'NORMAL'}; create one with `mqadmin updateTopic -t TOPIC -a +{MESSAGE_TYPE}={LITE}` on "
            f"brokers of RocketMQ 5.5 or later, or subscribe to {topic} by tags"
        )


def _check_group(group: str, topic: str, broker_name: str, attributes: dict[str, str]) -> None:
    bound = attributes.get(BIND_TOPIC)
    if bound != topic:
        is_bound = f"is bound to {bound}" if bound else "is not bound to a topic"
        raise LiteTopicsRefusedError(
            f"lite_topics needs a group that is bound to {topic}, but {group} on {broker_name} {is_bound}; "
            f"bind it with `mqadmin updateSubGroup -c CLUSTER -g {group} -a +{BIND_TOPIC}={topic}`"
        )
    if WILDCARD in attributes:
        raise LiteTopicsRefusedError(
            f"{group} on {broker_name} is a group for all lite topics ({WILDCARD}): brokers would send all of them, "
            "not only those in lite_topics; use another group"
        )
    if (model := attributes.get(MODEL, SHARED)) != SHARED:
        raise LiteTopicsRefusedError(
            f"{group} on {broker_name} has {MODEL}={model}, but members of rmqd share lite topics; "
            f"run `mqadmin updateSubGroup -c CLUSTER -g {group} -a +{MODEL}={SHARED}`"
        )
