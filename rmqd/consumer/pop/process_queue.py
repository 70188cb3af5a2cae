"""The cache of one popped queue. It acknowledges finished messages, and has no offset to commit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.pop.block import PopBlock
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message, MessageBlock


class PopProcessQueue(ProcessQueue):
    """The messages of one queue that this member popped. Other members may have other messages of it."""

    __slots__ = ("_receipts", "_relieve")

    def __init__(
        self,
        queue: MessageQueue,
        stats: TopicStats,
        namespace: str,
        receipts: PopReceipts,
        relieve: Callable[[], None],
    ) -> None:
        super().__init__(queue, 0, stats, namespace)
        self._receipts = receipts
        self._relieve = relieve  # called when messages are finished, though not for each message

    def put(self, block: MessageBlock, next_offset: int, held: Sequence[Message] = ()) -> None:
        """Add a response's messages of this queue. If the filter rejected all of them, acknowledge them at once."""
        assert isinstance(block, PopBlock)
        if not block.unfinished:
            self._receipts.acknowledge(block, block.unsettled(block.messages), self.stats)
        super().put(block, next_offset, held)

    def is_late(self, message: Message) -> bool:
        """Whether other members get the message too by now, so that its result here does not count."""
        block = message.block
        return isinstance(block, PopBlock) and self._receipts.is_late(block, message.queue_offset)

    def return_postponed(self, messages: list[Message]) -> bool:
        """Hand postponed messages out again, unless other members get them by now."""
        late = [] if self.dropped else [message for message in messages if self.is_late(message)]
        if late:
            self.retrying -= len(late)
            self.finish(late)
        return super().return_postponed([message for message in messages if message not in late])

    def settle_finished(self, block: PopBlock) -> None:
        """Acknowledge the finished messages of a block while handlers still have other messages of it."""
        finished = block.unsettled(message for message in block.messages if message.finished)
        if finished:
            self._receipts.acknowledge(block, finished, self.stats)
            self._relieve()

    def waiting_of(self, block: PopBlock) -> list[int]:
        """Return the queue offsets of a block's messages that no handler has."""
        return [message.queue_offset for message in self.waiting if message.block is block]

    def let_go_waiting(self, block: PopBlock) -> None:
        """Discard a block's messages that no handler has, without acknowledging them."""
        block.settled.update(self.waiting_of(block))
        self.let_go(lambda message: message.block is not block)

    def _order(self, message: Message) -> Any:
        """Sort by block first: after an operator's reset, two blocks may contain the same offsets."""
        block = message.block
        assert isinstance(block, PopBlock)
        return block.due, id(block), message.queue_offset

    def _forget(self, block: MessageBlock) -> None:
        assert isinstance(block, PopBlock)
        finished = block.unsettled(block.messages)
        super()._forget(block)
        if finished:
            self._receipts.acknowledge(block, finished, self.stats)
            self._relieve()
