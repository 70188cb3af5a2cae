"""The cache of one lite topic: handlers get its messages batch by batch, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from rmqd.consumer.lite.block import LiteBlock
from rmqd.consumer.pop.process_queue import PopProcessQueue
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message, MessageBlock


class Following(Protocol):
    """Receives the messages behind a batch."""

    def go_on(self, block: LiteBlock, process_queue: LiteProcessQueue) -> None:
        """Called when the batch was acknowledged: put the messages behind it into the cache."""

    def give_back(self, block: LiteBlock) -> None:
        """Called when the batch was not acknowledged: return the messages behind it to the broker."""


class LiteProcessQueue(PopProcessQueue):
    """Messages of one lite topic that this member popped. Meanwhile, no other member gets messages of it.

    If a batch is acknowledged as a whole, the messages behind it are put into the cache. Otherwise they are returned to
    the broker, which redelivers them after the failed message. This keeps the order.
    """

    __slots__ = ("_following",)

    def __init__(
        self,
        queue: MessageQueue,
        stats: TopicStats,
        namespace: str,
        receipts: PopReceipts,
        relieve: Callable[[], None],
        following: Following,
    ) -> None:
        super().__init__(queue, stats, namespace, receipts, relieve)
        self._following = following

    def put(self, block: MessageBlock, next_offset: int, held: Sequence[Message] = ()) -> None:
        """Add a batch. If the filter rejects all its messages, continue with the messages behind it."""
        assert isinstance(block, LiteBlock)
        is_wanted = bool(block.unfinished)
        super().put(block, next_offset, held)
        if not is_wanted:
            self._follow(block, is_whole=True)

    def _forget(self, block: MessageBlock) -> None:
        assert isinstance(block, LiteBlock)
        is_whole = not block.settled
        super()._forget(block)
        self._follow(block, is_whole=is_whole)

    def _follow(self, block: LiteBlock, *, is_whole: bool) -> None:
        if not block.rest or self.dropped:
            return
        if is_whole and not self.leaving and not self._receipts.is_late(block, block.rest[0].queue_offset):
            self._following.go_on(block, self)
        else:
            self._following.give_back(block)
