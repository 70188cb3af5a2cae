"""The cache of one popped queue: finished messages are acknowledged once, and the callback for free space is called."""

from __future__ import annotations

from collections import Counter

from rmqd.consumer.handling.settlement import Settlement
from rmqd.consumer.pop.pop_block import PopBlock
from rmqd.consumer.pop.receipts import PopProcessQueue
from rmqd.consumer.stats.counters import TopicStats
from rmqd.handler_api.batch import Batch
from rmqd.runtime.clock import SystemClock
from rmqd.wire.messages.message import Message
from tests.consumer.pop.popped import POPPED, popped


class Receipts:
    """Records acknowledged offsets and marks them as settled."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.relieved = 0
        self.now = 0.0

    def is_late(self, block: PopBlock, offset: int) -> bool:
        return self.now >= block.due_of(offset)

    def acknowledge(self, block: PopBlock, offsets: list[int], stats: TopicStats) -> None:
        block.settled.update(offsets)
        self.acknowledged += offsets

    def on_room(self) -> None:
        self.relieved += 1


def queue_of(receipts: Receipts, *blocks: PopBlock) -> PopProcessQueue:
    queue = PopProcessQueue(POPPED, TopicStats(POPPED.topic, is_retry=False), "", receipts, receipts.on_room)  # type: ignore[arg-type]
    for block in blocks:
        queue.put(block, 0)
    return queue


def test_skipped_messages_are_acknowledged_at_once() -> None:
    """A block with only skipped messages is not kept."""
    receipts, block = Receipts(), popped(range(3), 60)
    queue = queue_of(receipts)
    for message in block.messages:
        queue.skip(message)
    queue.put(block, 0)
    assert receipts.acknowledged == [0, 1, 2]
    assert (queue.cached_count, len(queue.blocks)) == (0, 0)


def test_a_block_is_acknowledged_when_its_last_message_is_finished() -> None:
    """`acknowledge_finished` acknowledges finished messages earlier. No message is acknowledged twice."""
    receipts, block = Receipts(), popped(range(4), 60)
    queue = queue_of(receipts, block)
    zero, one, two, three = queue.take(4)
    queue.acknowledge_finished(block)
    queue.finish([one])
    assert (receipts.acknowledged, receipts.relieved) == ([], 0)
    queue.acknowledge_finished(block)
    queue.acknowledge_finished(block)
    assert (receipts.acknowledged, receipts.relieved) == ([1], 1)
    queue.finish([zero, two, three])
    assert (sorted(receipts.acknowledged), receipts.relieved) == ([0, 1, 2, 3], 2)
    assert (queue.cached_count, queue.cached_bytes) == (0, 0)


def test_discarded_messages_without_a_handler_are_not_acknowledged() -> None:
    receipts, block = Receipts(), popped(range(4), 60)
    queue = queue_of(receipts, block, other := popped([9], 60))
    taken = queue.take(2)
    assert queue.unhandled_offsets(block) == [2, 3]
    queue.discard_waiting(block)
    queue.finish(taken)
    assert receipts.acknowledged == [0, 1]
    assert [message.queue_offset for message in queue.pending] == [9]
    assert queue.unhandled_offsets(other) == [9]


def test_messages_that_were_put_back_are_handed_out_by_block() -> None:
    """After an offset reset two blocks may have the same offsets. The block that is due first is handed out first."""
    receipts = Receipts()
    early, late = popped([5, 6], 60), popped([4, 5], 90)
    queue = queue_of(receipts, early, late)
    taken = queue.take(4)
    queue.put_back(taken[::-1])
    assert [(message.block is early, message.queue_offset) for message in queue.take(4)] == [
        (True, 5), (True, 6), (False, 4), (False, 5),
    ]  # fmt: skip
    queue.finish(taken)
    assert Counter(receipts.acknowledged) == Counter([4, 5, 5, 6])


def test_postponed_messages_past_their_invisible_time_are_not_handed_out() -> None:
    """The broker was unavailable for their retry, and the invisible time of one of the two blocks is over."""
    receipts = Receipts()
    early, late = popped([1], 60), popped([2], 90)
    queue = queue_of(receipts, early, late)
    taken = queue.take(2)
    queue.postpone(taken)
    receipts.now = 70.0
    assert queue.return_postponed(taken)
    assert [message.queue_offset for message in queue.pending] == [2]
    assert (receipts.acknowledged, queue.cached_count, queue.retrying) == ([1], 1, 0)


def test_postponed_messages_of_a_dropped_queue_are_discarded() -> None:
    receipts = Receipts()
    queue = queue_of(receipts, popped([1], 60))
    taken = queue.take(1)
    queue.postpone(taken)
    receipts.now = 70.0
    queue.drop("stopped")
    assert not queue.return_postponed(taken)
    assert (receipts.acknowledged, queue.cached_count, queue.retrying) == ([], 0, 0)


class NoRetry:
    """A retry policy that records messages sent back; the test expects none."""

    limit = "none"

    def __init__(self) -> None:
        self.sent: list[int] = []

    def is_last_attempt(self, _message: Message, _not_counted: int = 0) -> bool:
        return False

    def delay_level(self, _message: Message, level: int) -> int:
        return level

    def delay_seconds(self, _message: Message, _level: int) -> float:
        return 0.0

    async def retry(self, message: Message, _level: int) -> bool:
        self.sent.append(message.queue_offset)
        return True


async def test_a_block_past_its_invisible_time_is_not_sent_back() -> None:
    """Other members can see its messages again, so a send-back would create copies."""
    receipts, retry_policy = Receipts(), NoRetry()
    queue = queue_of(receipts, popped(range(3), 0.0))
    messages = queue.take(3)
    receipts.now = float("inf")
    settlement = Settlement(retry_policy, 0, lambda _: None, SystemClock())  # type: ignore[arg-type]
    await settlement.settle(queue, Batch(messages, POPPED), RuntimeError("no"))
    assert retry_policy.sent == []
    assert queue.cached_count == 0
