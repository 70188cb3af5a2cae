"""The messages that can be taken from a queue with ordered keys, partly by random schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rmqd.consumer.cache.keyed_process_queue import KeyedProcessQueue
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import value_reader
from tests.consumer.blocks import QUEUE, block_of, keyed_block

KEYS = st.sampled_from(["", "a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(KEYS, min_size=1, max_size=8)),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("finish"), st.integers(0, 9)),
        st.tuples(st.just("fail"), st.integers(0, 9)),
        st.tuples(st.just("again"), st.integers(0, 9)),
        st.tuples(st.just("pause"), st.booleans()),
        st.tuples(st.just("let go"), KEYS),
    ),
    max_size=60,
)


def queue_of(keys: Iterable[str], offset: int = 0) -> KeyedProcessQueue:
    """Return a queue with a message of each key, from an offset on."""
    queue = KeyedProcessQueue(QUEUE, offset, TopicStats(QUEUE.topic, is_retry=False), "", value_reader("keys"))
    more(queue, keys)
    return queue


def more(queue: KeyedProcessQueue, keys: Iterable[str]) -> None:
    block = keyed_block(queue.next_offset, keys)
    queue.put(block, queue.next_offset + len(block.messages))


def offsets(messages: Iterable[Message]) -> list[int]:
    return [message.queue_offset for message in messages]


class Schedule:
    """A queue, and a model of the state of its messages."""

    def __init__(self) -> None:
        self.queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", value_reader("keys"))
        self.messages: list[Message] = []
        self.in_hand: list[Message] = []
        self.resting: list[Message] = []
        self.handled: set[int] = set()

    def step(self, what: str, how: object) -> None:
        queue = self.queue
        match what, how:
            case "put", list(keys):
                block = keyed_block(queue.next_offset, keys)
                self.messages += block.messages
                queue.put(block, queue.next_offset + len(keys))
            case "take", int(most) if queue.pending:
                self.take(most)
            case "finish", int(at) if self.in_hand:
                message = self.in_hand.pop(at % len(self.in_hand))
                self.handled.add(message.queue_offset)
                queue.finish([message])
            case "fail", int(at) if self.in_hand:
                message = self.in_hand.pop(at % len(self.in_hand))
                self.resting.append(message)
                queue.postpone([message])
            case "again", int(at) if self.resting:
                queue.return_postponed([self.resting.pop(at % len(self.resting))])
            case "pause", bool(is_paused) if is_paused != queue.is_paused:
                (queue.pause if is_paused else queue.resume)()
            case "let go", str(key):
                queue.discard_unwanted(lambda message: message.keys != key)

    def take(self, most: int) -> None:
        """Take a batch. Each message must be the first unfinished one of its key, and the only one in flight."""
        for message in self.queue.take(most):
            if key := message.keys:
                before = [one for one in self.messages[: message.queue_offset] if one.keys == key]
                assert all(map(is_done, before))
                assert all(one.keys != key for one in (*self.in_hand, *self.resting))
            self.in_hand.append(message)

    def end_all(self, most: int) -> None:
        """Finish all that can be taken."""
        queue = self.queue
        while self.in_hand or queue.pending:
            if queue.pending:
                self.take(most)
            batch, self.in_hand = self.in_hand, []
            self.handled |= {message.queue_offset for message in batch}
            queue.finish(batch)


def is_done(message: Message) -> bool:
    """Whether a message is finished. If all messages of a block are, the block is emptied and they are not marked."""
    return message.finished or not message.block.messages


def first_unfinished(schedule: Schedule) -> int:
    return next((one.queue_offset for one in schedule.messages if not is_done(one)), schedule.queue.next_offset)


@given(steps=STEPS, most=st.integers(1, 4))
def test_keys_are_taken_in_order_and_nothing_is_forgotten(steps: list[tuple[str, object]], most: int) -> None:
    schedule = Schedule()
    queue = schedule.queue
    for what, how in steps:
        schedule.step(what, how)
        assert queue.commit_offset() == first_unfinished(schedule)
        waiting = sum(not is_done(one) for one in schedule.messages) - len(schedule.in_hand) - len(schedule.resting)
        assert (queue.waiting_count, queue.retrying) == (waiting, len(schedule.resting))
    if queue.is_paused:
        queue.resume()
    while schedule.resting:
        schedule.step("again", 0)
    schedule.end_all(most)
    assert all(map(is_done, schedule.messages))
    assert (queue.cached_count, queue.commit_offset()) == (0, queue.next_offset)


@given(steps=STEPS, most=st.integers(1, 4))
@example(steps=[("put", ["", ""]), ("take", 2), ("fail", 0)], most=1)
def test_a_release_ends_without_a_gap_below_the_handled_messages(steps: list[tuple[str, object]], most: int) -> None:
    """Except if the queue was paused. Suspended messages get one more attempt. Duplicates are counted."""
    schedule = Schedule()
    queue = schedule.queue
    for what, how in steps:
        schedule.step(what, how)
    had = {message.queue_offset for message in (*schedule.in_hand, *schedule.resting)}
    had |= {message.queue_offset for message in schedule.messages if is_done(message)}
    is_free = not queue.is_paused
    before = set(schedule.handled)
    queue.start_release()
    schedule.end_all(most)
    while schedule.resting:
        schedule.step("again", 0)
    schedule.end_all(most)
    offset = queue.commit_offset()
    finished = {message.queue_offset for message in schedule.messages if is_done(message)}
    assert schedule.handled - before <= set(range(max(had, default=-1) + 1))
    assert queue.finished_above_commit_offset() == sum(one > offset for one in finished)
    assert not queue.is_busy
    if is_free:
        assert not [one for one in finished if one > offset]


def test_corrupt_messages_hold_no_key() -> None:
    """The pull loop finishes them, so the next message of their key can be taken at once."""
    queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", value_reader("keys"))
    block = keyed_block(0, ["a", "a", "a"])
    corrupt = block.messages[0]
    queue.put(block, 3, held=[corrupt])
    assert [one.queue_offset for one in queue.take(3)] == [1]
    queue.finish([corrupt])
    assert not queue.pending
    assert queue.commit_offset() == 1


@pytest.mark.parametrize("properties", [{}, {"account": ""}, {"account": " \t"}])
def test_a_message_without_the_property_does_not_wait(properties: dict[str, str]) -> None:
    queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", value_reader("property:account"))
    queue.put(block_of(range(3), properties=properties), 3)
    assert len(queue.take(3)) == 3


def test_a_user_property_can_be_the_key() -> None:
    queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", value_reader("property:account"))
    queue.put(block_of(range(3), properties={"account": "7"}), 3)
    assert len(queue.take(3)) == 1


def test_messages_wait_for_a_key_if_one_of_several_keys_has_two() -> None:
    queue = queue_of(["a", "b"])
    assert not queue.has_messages_waiting_for_key
    more(queue, ["b"])
    assert queue.has_messages_waiting_for_key
    queue.finish(queue.take(2))
    assert not queue.has_messages_waiting_for_key


def test_a_batch_in_any_order_is_finished_in_queue_order() -> None:
    """Messages below its last one are still handed out during a release."""
    queue = queue_of(["a", "a", "b", "c"])
    zero, two = queue.take(2)
    queue.finish([two, zero])
    queue.start_release()
    assert offsets(queue.pending) == [1]
    queue.finish(queue.take(1))
    assert (queue.commit_offset(), queue.finished_above_commit_offset(), queue.cached_count) == (3, 0, 0)


def test_discard_unwanted_counts_messages_that_wait_for_their_key_too() -> None:
    queue = queue_of(["a", "a", "a", "b", ""])
    assert queue.discard_unwanted(lambda message: message.queue_offset not in (0, 1, 4)) == 3
    assert (offsets(queue.take(9)), queue.cached_count) == ([3, 2], 2)


async def test_the_release_of_a_paused_queue_ends_wait_for_room() -> None:
    queue = queue_of(["a"])
    queue.pause()
    waiting = asyncio.create_task(queue.wait_for_room())
    await asyncio.sleep(0)
    queue.start_release()
    await asyncio.wait_for(waiting, 5)
    assert not queue.is_paused


def test_a_failure_during_a_release_gets_one_more_attempt_below_a_finished_message() -> None:
    """Otherwise the next owner would handle the finished message again. A second failure gets no attempt."""
    queue = queue_of(["a", "b"])
    zero, one = queue.take(2)
    queue.start_release()
    queue.finish([one])
    queue.postpone([zero])
    assert queue.is_busy
    assert queue.return_postponed([zero])
    assert (queue.retrying, queue.take(1)) == (0, [zero])
    queue.postpone([zero])
    assert (queue.is_busy, queue.retrying) == (False, 1)
    assert not queue.return_postponed([zero])
    assert (queue.is_busy, queue.retrying, queue.finished_above_commit_offset()) == (False, 0, 1)


def test_a_release_grants_no_attempt_to_a_message_in_its_second_one() -> None:
    """The message is no longer suspended, so the queue is idle as soon as it is finished."""
    queue = queue_of(["a", "b"])
    zero, one = queue.take(2)
    queue.postpone([zero])
    queue.return_postponed([zero])
    queue.take(1)
    queue.finish([one])
    queue.start_release()
    queue.finish([zero])
    assert (queue.is_busy, queue.commit_offset()) == (False, 2)


def test_an_owner_that_finished_nothing_has_nothing_finished_above_its_offset() -> None:
    """At any start offset."""
    queue = queue_of(["a"], offset=5)
    queue.start_release()
    assert (queue.commit_offset(), queue.finished_above_commit_offset()) == (5, 0)


async def test_discard_waiting_makes_a_queue_idle_despite_a_suspended_message() -> None:
    """`wait_idle` returns, and later failures get no more attempt."""
    queue = queue_of(["a", "b", "c"])
    zero, one, two = queue.take(3)
    queue.start_release()
    queue.finish([two])
    queue.postpone([zero])
    waiting = asyncio.create_task(queue.wait_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.discard_waiting()
    assert not queue.is_busy
    await asyncio.wait_for(waiting, 5)
    queue.postpone([one])
    assert not queue.is_busy
    assert not queue.return_postponed([zero, one])
    assert (queue.commit_offset(), queue.retrying) == (0, 0)


async def test_a_pause_during_a_release_ends_the_drain_once_no_message_is_in_flight() -> None:
    """Otherwise the drain would take all of its time, after which the finished messages must not be committed."""
    queue = queue_of(["a", "a", "b", "c"])
    zero, two, three = queue.take(3)
    queue.begin_turn()
    queue.finish([two, three])
    queue.start_release()
    waiting = asyncio.create_task(queue.wait_idle())
    await asyncio.sleep(0)
    queue.finish([zero])
    queue.end_turn()
    assert queue.is_busy
    queue.pause()
    await asyncio.wait_for(waiting, 5)
    assert (queue.is_busy, queue.commit_offset(), queue.finished_above_commit_offset()) == (False, 1, 2)


def test_a_dropped_queue_hands_out_nothing_of_a_key_that_becomes_free() -> None:
    """Another owner has the messages behind it."""
    queue = queue_of(["a", "a", "b"])
    zero, two = queue.take(2)
    queue.drop("handed_over")
    assert queue.waiting_count == 0
    queue.finish([zero, two])
    assert not queue.pending


def test_a_dropped_queue_in_release_does_not_wait_for_suspended_messages() -> None:
    queue = queue_of(["a", "b"])
    zero, one = queue.take(2)
    queue.finish([one])
    queue.postpone([zero])
    queue.start_release()
    assert queue.is_busy
    queue.drop("handed_over")
    assert not queue.is_busy


def test_a_release_after_a_correction_hands_out_messages_below_a_finished_one() -> None:
    """Offset 2 was finished before the correction. Offsets 2 and 3 are left to the next owner."""
    queue = queue_of(["a", "b", "c"])
    queue.finish(queue.take(3))
    queue.continue_at(1)
    more(queue, ["b", "c", "c"])
    assert (offsets(queue.pending), queue.waiting_count) == ([1, 2], 3)
    queue.start_release()
    assert (offsets(queue.pending), queue.waiting_count, queue.cached_count) == ([1], 1, 1)


def test_a_release_after_a_correction_leaves_messages_that_wait_for_their_key() -> None:
    queue = queue_of(["a", "b", "b"])
    queue.finish(queue.take(2))
    queue.finish(queue.take(1))
    queue.continue_at(1)
    more(queue, ["b", "b"])
    queue.start_release()
    assert (offsets(queue.pending), queue.waiting_count, queue.cached_count) == ([1], 1, 1)


def test_a_message_that_fails_after_a_correction_gets_no_attempt_in_a_release() -> None:
    """It was finished before, but no message above it was."""
    queue = queue_of(["a", "b"])
    queue.finish(queue.take(2))
    queue.continue_at(1)
    more(queue, ["b"])
    queue.postpone(queue.take(1))
    queue.start_release()
    assert (queue.is_busy, queue.commit_offset()) == (False, 1)
