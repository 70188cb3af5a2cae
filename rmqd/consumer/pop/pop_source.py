"""The source of one assignment's messages: sends pops, divides responses into blocks, and creates the caches.

`PopSource` pops a topic, from one queue or from all queues of a broker. `LiteSource` pops lite topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

import structlog

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.codes import RequestCode
from rmqd.consumer.context import GroupContext
from rmqd.consumer.pop.pop_block import PopBlock, blocks_by_queue
from rmqd.consumer.pop.receipts import PopProcessQueue, PopReceipts
from rmqd.wire.command import RemotingCommand
from rmqd.wire.headers.pop_headers import PopMessageRequestHeader, PopMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_decodable_messages
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.receipt_handle import ANY_QUEUE_ID
from rmqd.wire.topics import retry_topic

log = structlog.get_logger(__name__)

RESPONSE_GRACE_SECONDS: Final = 10.0  # Java: how much longer than the hold time a response may take
TOO_LATE_REMARK: Final = "timeout too much"

_FROM_FIRST: Final = 0


class PopSource:
    """Pops the messages of one queue of a topic, or of all its queues at a broker (queue id -1)."""

    code: ClassVar[int] = int(RequestCode.POP_MESSAGE)
    keeps_order: ClassVar[bool] = False

    def __init__(self, context: GroupContext, receipts: PopReceipts, message_queue: MessageQueue) -> None:
        self.message_queue: Final = message_queue
        self.pops_in_flight = 0
        self._context = context
        self.receipts: Final = receipts
        # Whether pops contain a born time. If not, it is 0: brokers from 5.3 on use their clock, older brokers refuse.
        self._tells_time = False

    async def begin(self) -> None:
        """Prepare the first pop. Raises RmqdError.

        Stores the start offsets of a new group. After that, a queue without an offset was created later, and this
        member may not know the queue yet. So each pop asks the broker to begin such a queue at its first message: see
        `fields`.
        """
        context, ours = self._context, self.message_queue
        await context.start_offsets.store_if_new_group()
        for queue in context.client.routes.queues(ours.topic):
            if ours in (queue, queue._replace(queue_id=ANY_QUEUE_ID)) and context.start_offsets.is_deferred(queue):
                start = await context.start_offsets.determine_start(
                    queue, await context.start_offsets.read_stored_offset(queue)
                )
                if not start.is_stored:
                    await context.store.commit(queue, start.offset)
                    context.store.forget(queue)

    async def maintain(self) -> None:
        """Run concurrently with the pops. A source that has a subscription at the broker renews it here."""

    def refresh(self) -> None:
        """Called when options changed, or a pop failed."""

    async def end(self) -> None:
        """Called at the release when all pops have ended. Messages may still be in flight."""

    def fields(self, most: int) -> dict[str, str]:
        """Return the request fields of a pop of at most `most` messages. Java: `DefaultMQPushConsumerImpl`."""
        options, subscription = self._context.options, self._context.subscriptions[self.message_queue.topic]
        return PopMessageRequestHeader(
            consumer_group=options.group,
            topic=self.message_queue.topic,
            queue_id=self.message_queue.queue_id,
            max_msg_nums=most,
            invisible_time=round(options.pop_invisible_time_seconds * 1000),
            poll_time=0,
            born_time=0,
            init_mode=_FROM_FIRST,  # for queues without an offset, which were created after the group
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=False,
            bname=self.message_queue.broker_name,
        ).ext_fields()

    async def pop(
        self, fields: dict[str, str], hold_ms: int, came_late: Callable[[RemotingConnection, RemotingCommand], None]
    ) -> RemotingCommand:
        """Pop with these `fields`, and return the response, whatever its code. Raises RmqdError.

        A response after a cancellation is passed to `came_late` with its connection, because its messages are invisible
        to all members.
        """
        client, name = self._context.client, self.message_queue.broker_name
        born_ms = int(self._context.clock.wall() * 1000) if self._tells_time else 0
        # pop at the master, because slaves cannot record which messages are invisible
        connection = await client.connection(client.routes.master_for(self.message_queue.topic, name))
        fields = fields | {"pollTime": str(hold_ms), "bornTime": str(born_ms)}
        future = client.remoting.call(connection, self.code, fields, hold_ms / 1000 + RESPONSE_GRACE_SECONDS)
        self.pops_in_flight += 1
        try:
            return await future
        except asyncio.CancelledError:
            connection.pending.hand_over(future, partial(came_late, connection))
            raise
        finally:
            self.pops_in_flight -= 1

    def was_refused_as_late(self, reply: RemotingCommand) -> bool:
        """Return whether the broker rejected the pop as too old. If so, switch between born time 0 and our clock."""
        if TOO_LATE_REMARK not in (reply.remark or ""):
            return False
        self._tells_time = not self._tells_time
        return True

    def read(self, reply: RemotingCommand) -> tuple[PopMessageResponseHeader, MessageBlock]:
        """Return the header and the messages of a response. Raises ProtocolError."""
        return PopMessageResponseHeader.from_ext_fields(reply.ext_fields), self._framed(reply)

    def _framed(self, reply: RemotingCommand) -> MessageBlock:
        block = frame_decodable_messages(
            reply.payload, self.message_queue, reply.body_start, self._context.options.namespace
        )
        if block.broken_reason is not None:
            # messages behind the damage cannot be acknowledged; they become visible when their time is over
            self._context.client.remoting.traffic.doubted_replies += 1
            log.warning("pop.doubted", queue=str(self.message_queue), reason=block.broken_reason)
        return block

    def divide_into_blocks(self, found: MessageBlock, header: PopMessageResponseHeader, due: float) -> list[PopBlock]:
        """Group a response's messages by their queue. Raises ProtocolError."""
        return blocks_by_queue(found, self.message_queue, self._context.options.group, header, due)

    def make_visible(
        self,
        found: MessageBlock,
        header: PopMessageResponseHeader,
        due: float,
        connection: RemotingConnection | None = None,
    ) -> None:
        """Make popped messages that are not in the cache visible to other members. See `PopReceipts.make_visible`."""
        for block in self.divide_into_blocks(found, header, due):
            offsets = block.unsettled_offsets(block.all_messages)
            self.record_unhandled(block.queue, offsets)
            self.receipts.make_visible(block, offsets, connection)

    def record_unhandled(self, queue: MessageQueue, offsets: list[int]) -> None:
        """Called for popped messages that return to the broker without a handler call."""

    def create_cache(
        self, queue: MessageQueue, put: Callable[[PopBlock, PopProcessQueue], None], on_room: Callable[[], None]
    ) -> PopProcessQueue:
        """Return an empty cache for the messages of one queue.

        The cache calls `on_room` when messages are finished. `put` adds a block to the cache; lite topics need it.
        """
        context = self._context
        stats = context.stats.get(queue.topic) or context.stats[retry_topic(context.options.group)]
        return PopProcessQueue(queue, stats, context.options.namespace, self.receipts, on_room)

    @property
    def lag_topic(self) -> str:
        """The topic whose lag is requested from the broker; empty for all topics with offsets of the group."""
        return self.message_queue.topic

    def counts_lag_of(self, queue: MessageQueue) -> bool:
        """Return whether the lag of a broker's queue belongs to this source."""
        ours = self.message_queue
        return queue.topic == ours.topic and ours.queue_id in (ANY_QUEUE_ID, queue.queue_id)
