"""Pops the lite topics of one parent topic at one broker, and puts the messages into process queues."""

from __future__ import annotations

from typing import ClassVar

import structlog

from rmqd.consumer.context import GroupContext
from rmqd.consumer.lite.block import LiteBlock, PassedOver, divided_by_lite_topic, place
from rmqd.consumer.lite.process_queue import LiteProcessQueue
from rmqd.consumer.lite.request import LitePopRequest
from rmqd.consumer.lite.subscribed import LiteSubscribed
from rmqd.consumer.pop.block import PopBlock
from rmqd.consumer.pop.loop import PopLoop
from rmqd.consumer.pop.process_queue import PopProcessQueue
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.pop.request import PopRequest
from rmqd.errors import RmqdError
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.lite import PopLiteMessageResponseHeader
from rmqd.wire.headers.pop import PopMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import MessageBlock

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
        self._arrivals.take(following, process_queue, 0)
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
