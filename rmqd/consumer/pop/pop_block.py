"""The messages that one pop returned from one queue, and the handles to acknowledge them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable

from rmqd.wire.headers.pop_headers import PopMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages import properties as names
from rmqd.wire.messages.message import Message, MessageBlock
from rmqd.wire.receipt_handle import PopHandle, PoppedQueue, RetryFlag, parse_start_offsets

_numbers = itertools.count()


class PopBlock(MessageBlock):
    """The messages that one pop returned from one queue. Other members do not see them until `due` (monotonic seconds).

    The handles of the messages differ only in the queue offset, so the block stores one `handle` for all messages. A
    message with a changed invisible time gets a separate handle and time (`renewed`).
    """

    __slots__ = (
        "changing",
        "handle",
        "has_retries",
        "number",
        "queue",
        "renew_at",
        "renewed",
        "settled",
        "topic",
        "visible_at",
    )

    def __init__(
        self, data: bytes, queue: MessageQueue, topic: str, handle: PopHandle, due: float, namespace: str
    ) -> None:
        super().__init__(data, queue, namespace)
        self.origin = topic
        self.number = next(_numbers)  # in the order of pops, and of a response's queues
        self.queue = queue  # the queue that stores the messages, as the broker names it
        self.topic = topic  # the subscribed topic; `queue` may belong to a retry topic
        self.handle = handle
        self.visible_at = due
        self.renew_at = due - handle.invisible_time / 3000  # when to extend the time of messages in flight
        self.has_retries = False  # whether a message was sent back
        # The keys below are queue offsets.
        self.settled: set[int] = set()  # acknowledged, sent back or discarded
        self.changing: dict[int, asyncio.Future[None]] = {}  # a request for a new handle is in progress
        self.renewed: dict[int, tuple[PopHandle, float]] = {}  # the new handle, and when its time is over

    @property
    def lite_topic(self) -> str | None:
        """The lite topic that requests about these messages need in addition to `topic`; None if there is none."""
        return None

    @property
    def all_messages(self) -> list[Message]:
        """The messages of the block, and the messages of the same pop that wait behind them."""
        return self.messages

    def handle_of(self, offset: int) -> PopHandle:
        """Return the current handle of the message at a queue offset."""
        renewed = self.renewed.get(offset)
        return self.handle._replace(queue_offset=offset) if renewed is None else renewed[0]

    def due_of(self, offset: int) -> float:
        """Return when the message at a queue offset becomes visible to other members (monotonic seconds)."""
        renewed = self.renewed.get(offset)
        return self.visible_at if renewed is None else renewed[1]

    def unsettled_offsets(self, messages: Iterable[Message]) -> list[int]:
        """Return the queue offsets of those messages that are not acknowledged, sent back or discarded yet."""
        if not self.settled:
            return [message.queue_offset for message in messages]
        return [message.queue_offset for message in messages if message.queue_offset not in self.settled]


def blocks_by_queue(
    reply: MessageBlock, message_queue: MessageQueue, group: str, header: PopMessageResponseHeader, due: float
) -> list[PopBlock]:
    """Group a response's messages by their queue. Raises ProtocolError.

    `message_queue` is the requested queue; its id -1 means any queue of a broker. The queue of a block has the topic
    that stores the messages. For messages that were popped before, this is the group's retry topic. Java:
    `MQClientAPIImpl.processPopResponse`.
    """
    starts = parse_start_offsets(header.start_offset_info)
    from_retries = any(queue.retry for queue in starts)
    blocks: dict[PoppedQueue, PopBlock] = {}

    def block_of(message: Message) -> PopBlock:
        retry = _retry_flag(message) if from_retries else RetryFlag.NORMAL
        queue = PoppedQueue(retry, message.stored_queue_id)
        if (known := blocks.get(queue)) is not None:
            return known
        offset = message.queue_offset
        start = starts.get(queue, offset)
        handle = header.handle(
            retry, message_queue.broker_name, queue.queue_id, start_offset=start, queue_offset=offset
        )
        real = MessageQueue(retry.real_topic(group, message_queue.topic), message_queue.broker_name, queue.queue_id)
        block = blocks[queue] = PopBlock(reply.data, real, message_queue.topic, handle, due, reply.namespace)
        block.decompressed = reply.decompressed
        return block

    block, queue_id = None, None
    for message in reply.messages:
        if block is None or from_retries or message.stored_queue_id != queue_id:  # a response is sorted by queue
            block, queue_id = block_of(message), message.stored_queue_id
        message.block = block
        block.messages.append(message)
    for corrupt in reply.corrupt:
        corrupt.message.block = block_of(corrupt.message)
        corrupt.message.block.corrupt.append(corrupt)
    for each in blocks.values():
        each.unfinished = len(each.messages)
        each.size_bytes = reply.size_bytes // len(blocks)
    return list(blocks.values())


def _retry_flag(message: Message) -> RetryFlag:
    """Return which retry topic stores a message, if any. The message itself has its original topic."""
    told = message.stored_properties.get(names.POP_CK)
    return PopHandle.parse(told).retry if told else RetryFlag.of(message.record_topic)
