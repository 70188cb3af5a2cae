"""A lite topic's messages in the cache: batch after batch, and back to the broker after a failure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from rmqd.consumer.lite.lite_queues import (
    LiteBlock,
    LiteProcessQueue,
    UnhandledPops,
    blocks_by_lite_topic,
    set_popped_offsets,
)
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.headers.pop_headers import PopMessageResponseHeader
from rmqd.wire.lite_topic import lite_topic_queue
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message

ASKED = MessageQueue("chats", "b", -1)
HEADER = PopMessageResponseHeader(pop_time=1, invisible_time=60_000, revive_qid=999, rest_num=0)


class Receipts:
    """A record of the requests to the broker."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []
        self.given_back: list[int] = []
        self.late = False

    def acknowledge(self, block: LiteBlock, offsets: list[int], _: object) -> None:
        block.settled.update(offsets)
        self.acknowledged += offsets

    def make_visible(self, _block: LiteBlock, offsets: list[int]) -> None:
        self.given_back += offsets

    def is_late(self, _block: LiteBlock, _offset: int) -> bool:
        return self.late


class Case:
    """Five messages of one lite topic, put in batches of two."""

    def __init__(self) -> None:
        self.receipts = Receipts()
        queue = lite_topic_queue("chats", "s1", "b")
        receipts = cast(PopReceipts, self.receipts)
        stats = TopicStats("chats", is_retry=False)
        self.queue = LiteProcessQueue(
            queue, stats, "", receipts, lambda: None, lambda block, queue: queue.put(block, 0), UnhandledPops()
        )
        (block,) = popped(["s1"] * 5, "0;0;0;0;0", most=2)
        self.queue.put(block, 0)

    @property
    def waiting(self) -> list[int]:
        return [message.queue_offset for message in self.queue.waiting]


def popped(
    lite_topics: Iterable[str], tries: str, most: int, passed_over: UnhandledPops | None = None
) -> list[LiteBlock]:
    """Return the blocks of a response with a message for each name. Offsets in each lite topic are 0, 1, 2 …"""
    at: dict[str, int] = {}
    records = []
    for number, name in enumerate(lite_topics):
        offset = at[name] = at.get(name, -1) + 1
        properties = {
            "__LITE_TOPIC": name,
            "INNER_MULTI_DISPATCH": lite_topic_queue("chats", name, "b").topic,
            "INNER_MULTI_QUEUE_OFFSET": str(offset),
        }
        stored = StoredMessage(topic="chats", queue_id=3, queue_offset=70 + number, body=b"x", properties=properties)
        records.append(encode_message(stored))
    reply = decode_messages(b"".join(records), ASKED)
    assert set_popped_offsets(reply, ASKED, tries, passed_over or UnhandledPops()) == 0
    return blocks_by_lite_topic(reply, ASKED, HEADER, 60.0, most)


def test_a_response_is_divided_by_lite_topic() -> None:
    """Each message shows its offset there, the parent as its topic, and its earlier attempts."""
    one, other = popped(["s1", "s2", "s1"], "0;0 qo0%0 4;0 qo0%1 1", most=32)
    assert (one.lite_topic, other.lite_topic, one.topic) == ("s1", "s2", "chats")
    assert [(m.queue_offset, m.reconsume_times, m.topic) for m in one.messages] == [(0, 0, "chats"), (1, 1, "chats")]
    assert [(m.queue_offset, m.reconsume_times) for m in other.messages] == [(0, 4)]
    assert (one.handle.queue_id, one.handle_of(1).queue_offset) == (0, 1)


def test_pops_without_a_handler_call_do_not_count_as_attempts() -> None:
    """They are forgotten for messages below a handled one."""
    passed_over, queue = UnhandledPops(), lite_topic_queue("chats", "s1", "b")
    passed_over.record(queue, [1, 2])
    passed_over.record(queue, [2])
    (block,) = popped(["s1"] * 3, "3;3;3", 32, passed_over)
    assert [message.reconsume_times for message in block.messages] == [3, 2, 1]
    passed_over.forget_below(queue, 2)
    assert [passed_over.count_of(queue, offset) for offset in (1, 2)] == [0, 2]


def test_the_next_batch_is_put_when_one_is_acknowledged() -> None:
    case = Case()
    assert case.waiting == [0, 1]
    case.queue.finish(case.queue.take(2))
    assert (case.waiting, case.receipts.acknowledged, case.receipts.given_back) == ([2, 3], [0, 1], [])
    case.queue.finish(case.queue.take(2))
    case.queue.finish(case.queue.take(2))
    assert (case.waiting, case.receipts.acknowledged, case.queue.cached_count) == ([], [0, 1, 2, 3, 4], 0)


def test_messages_behind_a_failed_batch_are_returned_to_the_broker() -> None:
    """Also if only one message of the batch failed."""
    case = Case()
    messages = case.queue.take(2)
    cast(Any, messages[1].block).settled.add(1)  # a retry: the message is invisible for its delay
    case.queue.finish(messages)
    assert (case.waiting, case.receipts.acknowledged, case.receipts.given_back) == ([], [0], [2, 3, 4])
