"""The popped messages of lite topics: handlers get the messages of each lite topic batch by batch, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.receipts import PopProcessQueue, PopReceipts
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.headers.pop_headers import PopMessageResponseHeader
from rmqd.wire.lite_topic import lite_topic_queue, parse_pop_counts
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import light_queue_offset
from rmqd.wire.messages.message import CorruptMessage, Message, MessageBlock
from rmqd.wire.receipt_handle import PopHandle, RetryFlag


class LiteBlock(PopBlock):
    """One batch of a lite topic. `rest` contains the later messages of the lite topic from the same pop, in order."""

    __slots__ = ("_lite_topic", "_most", "later_messages")

    def __init__(
        self,
        data: bytes,
        queue: MessageQueue,
        topic: str,
        lite_topic: str,
        handle: PopHandle,
        due: float,
        namespace: str,
        most: int,
    ) -> None:
        super().__init__(data, queue, topic, handle, due, namespace)
        self.origin = None
        self._lite_topic = lite_topic
        self._most = most  # maximum number of messages in a batch
        self.later_messages: list[Message] = []

    @property
    def lite_topic(self) -> str:
        return self._lite_topic

    @property
    def all_messages(self) -> list[Message]:
        return [*self.messages, *self.later_messages]

    def with_messages(self, messages: list[Message], size_bytes: int) -> LiteBlock:
        """Return a block of the same pop. The first messages become its batch, and the others its `rest`."""
        block = LiteBlock(
            self.data,
            self.queue,
            self.topic,
            self._lite_topic,
            self.handle,
            self.visible_at,
            self.namespace,
            self._most,
        )
        block.decompressed = self.decompressed
        block.messages, block.later_messages = messages[: self._most], messages[self._most :]
        block.unfinished, block.size_bytes = len(block.messages), size_bytes
        for message in block.messages:
            message.block = block
        return block


class UnhandledPops:
    """Counts the pops of messages that this member returned without a handler call.

    Either an earlier message failed, or there was no room for a decompressed body.

    A broker counts every pop of a message as an attempt. Without this correction, messages behind a failed message
    would be dead-lettered at their own first failure.
    """

    def __init__(self) -> None:
        self._times: dict[MessageQueue, Counter[int]] = {}  # counted by offset in the lite topic's queue

    def record(self, queue: MessageQueue, offsets: Iterable[int]) -> None:
        """Record messages that are returned to the broker without a handler call."""
        self._times.setdefault(queue, Counter()).update(offsets)

    def count_of(self, queue: MessageQueue, offset: int) -> int:
        known = self._times.get(queue)
        return 0 if known is None else known[offset]

    def forget_below(self, queue: MessageQueue, offset: int) -> None:
        """Forget the counts of messages below an offset. These messages will not be redelivered."""
        known = self._times.pop(queue, None)
        if known and (kept := Counter({at: times for at, times in known.items() if at >= offset})):
            self._times[queue] = kept


def set_popped_offsets(
    reply: MessageBlock, message_queue: MessageQueue, tries: str | None, passed_over: UnhandledPops
) -> int:
    """Set the offset (in its lite topic) and the number of attempts of each message in a response.

    `message_queue` is the requested parent topic on a broker. `tries` is the response's orderCountInfo, which counts
    the pops of each message. Pops without a handler call are subtracted. Corrupt messages without a lite topic are
    removed; returns their number. Raises ProtocolError. Java: `MQClientAPIImpl.processPopLiteResponse`.
    """
    found = sorted(
        [*reply.messages, *(one.message for one in reply.corrupt)], key=lambda message: message.byte_position
    )
    for message, times in zip(found, parse_pop_counts(tries, len(found)), strict=True):
        if (name := message.lite_topic) is not None:
            queue = lite_topic_queue(message_queue.topic, name, message_queue.broker_name)
            offset = light_queue_offset(queue.topic, message.stored_properties)
            message.set_popped_offset(offset, max(0, times - passed_over.count_of(queue, offset)))
    nameless = [one for one in reply.corrupt if one.message.lite_topic is None]
    reply.corrupt = [one for one in reply.corrupt if one.message.lite_topic is not None]
    return len(nameless)


def blocks_by_lite_topic(
    reply: MessageBlock, message_queue: MessageQueue, header: PopMessageResponseHeader, due: float, most: int
) -> list[LiteBlock]:
    """Return a block for each lite topic of a response, with a batch of at most `most` messages and the rest.

    Call `set_popped_offsets` first.
    """
    messages: dict[str, list[Message]] = {}
    corrupt: dict[str, list[CorruptMessage]] = {}
    for message in sorted(reply.messages, key=lambda message: message.byte_position):
        messages.setdefault(message.lite_topic or "", []).append(message)
    for one in reply.corrupt:
        corrupt.setdefault(one.message.lite_topic or "", []).append(one)
    blocks = []
    for name in dict.fromkeys([*messages, *corrupt]):
        queue = lite_topic_queue(message_queue.topic, name, message_queue.broker_name)
        handle = header.handle(RetryFlag.NORMAL, queue.broker_name, queue.queue_id, start_offset=0, queue_offset=0)
        whole = LiteBlock(reply.data, queue, message_queue.topic, name, handle, due, reply.namespace, most)
        whole.decompressed = reply.decompressed
        block = whole.with_messages(messages.get(name, []), reply.size_bytes // (len(messages) or 1))
        block.corrupt = corrupt.get(name, [])
        for one in block.corrupt:
            one.message.block = block
        blocks.append(block)
    return blocks


class LiteProcessQueue(PopProcessQueue):
    """The cache of one lite topic's popped messages. While it has messages, other members get none of the lite topic.

    If a batch is acknowledged as a whole, the messages behind it are put into the cache. Otherwise these messages are
    returned to the broker, which redelivers them after the failed message. This keeps the order.
    """

    __slots__ = ("_passed_over", "_put_next")

    def __init__(
        self,
        queue: MessageQueue,
        stats: TopicStats,
        namespace: str,
        receipts: PopReceipts,
        on_room: Callable[[], None],
        put: Callable[[PopBlock, PopProcessQueue], None],
        passed_over: UnhandledPops,
    ) -> None:
        super().__init__(queue, stats, namespace, receipts, on_room)
        self._put_next = put
        self._passed_over = passed_over

    def put(self, block: MessageBlock, next_offset: int, held: Sequence[Message] = ()) -> None:
        """Add a batch. If the filter rejected all its messages, add the next batch of the same pop too."""
        assert isinstance(block, LiteBlock)
        is_wanted = bool(block.unfinished)
        self._passed_over.forget_below(block.queue, min(block.unsettled_offsets(block.messages), default=0))
        super().put(block, next_offset, held)
        if not is_wanted:
            self._follow(block, is_whole=True)

    def return_postponed(self, messages: list[Message]) -> bool:
        """Hand out postponed messages again, or return them to the broker if an earlier message waits for a retry."""
        block = messages[0].block
        assert isinstance(block, LiteBlock)
        oldest = next((message for message in block.messages if not message.finished), None)
        if self.dropped or (oldest is messages[0] and not block.has_retries):
            return super().return_postponed(messages)
        self.retrying -= len(messages)
        self._return_to_broker(block, messages)
        self.finish(messages)
        return False

    def _forget(self, block: MessageBlock) -> None:
        assert isinstance(block, LiteBlock)
        is_whole = not block.settled
        super()._forget(block)
        self._follow(block, is_whole=is_whole)

    def _follow(self, block: LiteBlock, *, is_whole: bool) -> None:
        if not block.later_messages or self.dropped:
            return
        rest, block.later_messages = block.later_messages, []
        if is_whole and not self.is_releasing and not self._receipts.is_late(block, rest[0].queue_offset):
            self._put_next(block.with_messages(rest, block.size_bytes), self)
        else:
            self._return_to_broker(block, rest)

    def _return_to_broker(self, block: LiteBlock, messages: Iterable[Message]) -> None:
        offsets = [message.queue_offset for message in messages]
        self._passed_over.record(block.queue, offsets)
        self._receipts.make_visible(block, offsets)
