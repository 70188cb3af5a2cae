"""Pops the lite topics of one parent topic at one broker, and puts the messages into process queues.

The lite topics of one parent topic at one broker: from the subscription to the last acknowledgement.

Assignment of lite topics: every member pops the lite topics that it subscribed to, at every broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import ClassVar

import structlog

from rmqd.client.api.admin_requests import topic_config
from rmqd.client.api.group_requests import subscription_group
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.context import GroupContext
from rmqd.consumer.lite.lite_queues import (
    LiteBlock,
    LitePopRequest,
    LiteProcessQueue,
    LiteSubscribed,
    PassedOver,
    divided_by_lite_topic,
    place,
)
from rmqd.consumer.pop.pop_assignment import PopAssignment, PopStatus
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.pop_loop import PopLoop
from rmqd.consumer.pop.pop_retries import PopRequest
from rmqd.consumer.pop.receipts import PopProcessQueue, PopReceipts
from rmqd.consumer.pull.pull_request import until_answered
from rmqd.consumer.rebalance.rebalance import Division, MemberShare
from rmqd.errors import LiteTopicsRefusedError, RmqdError
from rmqd.wire.bodies.config_bodies import LITE, MESSAGE_TYPE
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop_headers import PopLiteMessageResponseHeader, PopMessageResponseHeader
from rmqd.wire.lite_topic import BIND_TOPIC, MODEL, SHARED, WILDCARD, parent_of
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.receipt_handle import ANY_QUEUE

log = structlog.get_logger(__name__)


class LiteLoop(PopLoop):
    """The pops of one assignment. Each lite topic with messages has a separate cache."""

    request_type: ClassVar[type[PopRequest]] = LitePopRequest

    def __init__(self, context: GroupContext, receipts: PopReceipts, message_queue: MessageQueue) -> None:
        self.subscribed = LiteSubscribed(context, message_queue)
        self._passed_over = PassedOver()
        super().__init__(context, receipts, message_queue)

    def take_over_options(self) -> int:
        """Apply changed options at once, including the selection of lite topics."""
        self.subscribed.again()
        return super().take_over_options()

    def _read_header(self, reply: RemotingCommand) -> PopMessageResponseHeader:
        header = PopLiteMessageResponseHeader.from_ext_fields(reply.ext_fields)
        return PopMessageResponseHeader(
            pop_time=header.pop_time,
            invisible_time=header.invisible_time,
            revive_qid=header.revive_qid,
            rest_num=0,  # not in the response
            order_count_info=header.order_count_info,
        )

    def _read(self, reply: RemotingCommand) -> tuple[PopMessageResponseHeader, MessageBlock]:
        header, block = super()._read(reply)
        if left_out := place(block, self._message_queue, header.order_count_info, self._passed_over):
            # without a lite topic they cannot be acknowledged; they become visible again when their time is over
            log.warning("pop.doubted", queue=str(self._message_queue), reason=f"{left_out} corrupt, no lite topic")
        return header, block

    def _divided(self, found: MessageBlock, header: PopMessageResponseHeader, popped_at: float) -> list[PopBlock]:
        due, most = popped_at + header.invisible_time / 1000, self._context.options.consume_message_batch_max_size
        blocks = divided_by_lite_topic(found, self._message_queue, header, due, most)
        for block in blocks:
            offsets = [message.queue_offset for message in block.messages]
            self._passed_over.forget_below(block.queue, min(offsets, default=0))
        return [*blocks]

    def _process_queue_for(self, message_queue: MessageQueue) -> PopProcessQueue:
        context = self._context
        stats, namespace = context.stats[self._message_queue.topic], context.options.namespace
        return LiteProcessQueue(message_queue, stats, namespace, self._receipts, self.relieve, self)

    def go_on(self, block: LiteBlock, process_queue: LiteProcessQueue) -> None:
        """Put the messages behind an acknowledged batch into the cache."""
        rest, block.rest = block.rest, []
        most = self._context.options.consume_message_batch_max_size
        following = block.holding(rest, most, block.size_bytes)
        self._acceptor.take(following, process_queue, 0)
        self.cached.set()

    def give_back(self, block: LiteBlock) -> None:
        """Return the messages behind a failed batch to the broker, which redelivers them after the failed message."""
        offsets = [message.queue_offset for message in block.rest]
        block.rest = []
        self._passed_over.note(block.queue, offsets)
        self._receipts.show_again(block, offsets)

    async def _failed(self, error: RmqdError) -> None:
        self.subscribed.again()  # the broker may have restarted and lost the subscription
        await super()._failed(error)


class LiteStatus(PopStatus):
    """The status of a lite assignment. Its lag includes all lite topics with an offset of the group."""

    @property
    def _asked_topic(self) -> str:
        return ""

    def _is_ours(self, queue: MessageQueue) -> bool:
        return parent_of(queue.topic) == self._message_queue.topic


class LiteAssignment(PopAssignment):
    """Subscribes and pops. At its release it unsubscribes first, so that other members get new messages."""

    loop_type: ClassVar[type[PopLoop]] = LiteLoop
    status_type: ClassVar[type[PopStatus]] = LiteStatus

    async def _pop(self) -> None:
        loop = self.loop
        assert isinstance(loop, LiteLoop)
        await until_answered(self._context, self.message_queue, loop.subscribed.subscribe)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loop.subscribed.keep(), name=f"lite subscription:{self.message_queue}")
            tasks.create_task(loop.run(), name=f"lite pops:{self.message_queue}")

    async def _popped_last(self) -> None:
        loop = self.loop
        assert isinstance(loop, LiteLoop)
        await loop.subscribed.end()


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
    ) -> MemberShare | None:
        """Return all lite topics at each broker of the parent topic; None while no broker responds.

        Raises LiteTopicsRefusedError if the topic or the group is not set up for lite topics.
        """
        names = sorted({queue.broker_name for queue in queues})
        ready = [name for name in names if name in self._served or await self._is_served(topic, name)]
        if names and not ready:
            return None
        return MemberShare(popped=frozenset(MessageQueue(topic, name, ANY_QUEUE) for name in ready))

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
