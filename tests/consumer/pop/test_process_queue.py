"""The cache of one popped queue: what is finished is acknowledged, once, and whoever waits for room hears of it."""

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
    """Remembers what was acknowledged, and takes it as settled."""

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


def test_what_the_group_does_not_want_is_acknowledged_at_once() -> None:
    """A reply of nothing else is not kept."""
    receipts, block = Receipts(), popped(range(3), 60)
    queue = queue_of(receipts)
    for message in block.messages:
        queue.skip(message)
    queue.put(block, 0)
    assert receipts.acknowledged == [0, 1, 2]
    assert (queue.cached_count, len(queue.blocks)) == (0, 0)


def test_a_block_is_acknowledged_when_its_last_message_is_finished() -> None:
    """Or from time to time, what is finished of it by then; nothing twice."""
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


def test_what_nobody_has_is_left_to_others_and_not_acknowledged() -> None:
    receipts, block = Receipts(), popped(range(4), 60)
    queue = queue_of(receipts, block, other := popped([9], 60))
    taken = queue.take(2)
    assert queue.unhandled_offsets(block) == [2, 3]
    queue.discard_waiting(block)
    queue.finish(taken)
    assert receipts.acknowledged == [0, 1]
    assert [message.queue_offset for message in queue.pending] == [9]
    assert queue.unhandled_offsets(other) == [9]


def test_messages_put_back_come_block_by_block() -> None:
    """After a reset of the offset two blocks may hold the same offsets; what is due first goes first."""
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


def test_postponed_messages_that_others_see_again_are_not_handed_out() -> None:
    """The broker was away when they were to be given back, and its time for one of the two blocks is over."""
    receipts = Receipts()
    early, late = popped([1], 60), popped([2], 90)
    queue = queue_of(receipts, early, late)
    taken = queue.take(2)
    queue.postpone(taken)
    receipts.now = 70.0
    assert queue.return_postponed(taken)
    assert [message.queue_offset for message in queue.pending] == [2]
    assert (receipts.acknowledged, queue.cached_count, queue.retrying) == ([1], 1, 0)


def test_postponed_messages_of_a_queue_that_was_dropped_are_forgotten() -> None:
    receipts = Receipts()
    queue = queue_of(receipts, popped([1], 60))
    taken = queue.take(1)
    queue.postpone(taken)
    receipts.now = 70.0
    queue.drop("stopped")
    assert not queue.return_postponed(taken)
    assert (receipts.acknowledged, queue.cached_count, queue.retrying) == ([], 0, 0)


class NoRetry:
    """Nothing is to be sent back."""

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


async def test_a_whole_block_that_is_late_is_not_sent_back() -> None:
    """Others see its messages again by now, so that copies would come beside them."""
    receipts, retry_policy = Receipts(), NoRetry()
    queue = queue_of(receipts, popped(range(3), 0.0))
    messages = queue.take(3)
    receipts.now = float("inf")
    settlement = Settlement(retry_policy, 0, lambda _: None, SystemClock())  # type: ignore[arg-type]
    await settlement.settle(queue, Batch(messages, POPPED), RuntimeError("no"))
    assert retry_policy.sent == []
    assert queue.cached_count == 0
