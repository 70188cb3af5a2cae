"""Which messages of a queue can be taken where each key is kept in order, by schedules that are drawn."""

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
    """A queue with a message of each key, from an offset on."""
    queue = KeyedProcessQueue(QUEUE, offset, TopicStats(QUEUE.topic, is_retry=False), "", value_reader("keys"))
    more(queue, keys)
    return queue


def more(queue: KeyedProcessQueue, keys: Iterable[str]) -> None:
    block = keyed_block(queue.next_offset, keys)
    queue.put(block, queue.next_offset + len(block.messages))


def offsets(messages: Iterable[Message]) -> list[int]:
    return [message.queue_offset for message in messages]


class Schedule:
    """What was put, and where each message is, beside the queue itself."""

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
        """A batch, each message of which must be the first unfinished one of its key, with nobody else."""
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
    """Whether a message is finished: a block of which all are is emptied, without a mark at each."""
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
def test_a_queue_that_is_left_ends_without_a_gap_below_what_was_handled(
    steps: list[tuple[str, object]], most: int
) -> None:
    """Unless it was paused; what rests has one more attempt. How many will be handled again is known."""
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
    """The pull loop finishes them by itself; the next one of their key can be taken at once."""
    queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", value_reader("keys"))
    block = keyed_block(0, ["a", "a", "a"])
    corrupt = block.messages[0]
    queue.put(block, 3, held=[corrupt])
    assert [one.queue_offset for one in queue.take(3)] == [1]
    queue.finish([corrupt])
    assert not queue.pending
    assert queue.commit_offset() == 1


@pytest.mark.parametrize("properties", [{}, {"account": ""}, {"account": " \t"}])
def test_a_message_without_the_property_waits_for_none(properties: dict[str, str]) -> None:
    queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", value_reader("property:account"))
    queue.put(block_of(range(3), properties=properties), 3)
    assert len(queue.take(3)) == 3


def test_a_property_of_ones_own_is_a_key() -> None:
    queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", value_reader("property:account"))
    queue.put(block_of(range(3), properties={"account": "7"}), 3)
    assert len(queue.take(3)) == 1


def test_a_message_waits_for_another_one_if_only_one_key_of_several_has_two() -> None:
    queue = queue_of(["a", "b"])
    assert not queue.has_messages_waiting_for_key
    more(queue, ["b"])
    assert queue.has_messages_waiting_for_key
    queue.finish(queue.take(2))
    assert not queue.has_messages_waiting_for_key


def test_a_batch_that_comes_back_in_any_order_is_finished_in_that_of_the_queue() -> None:
    """What lies below its last message is handed out though the queue is left."""
    queue = queue_of(["a", "a", "b", "c"])
    zero, two = queue.take(2)
    queue.finish([two, zero])
    queue.start_release()
    assert offsets(queue.pending) == [1]
    queue.finish(queue.take(1))
    assert (queue.commit_offset(), queue.finished_above_commit_offset(), queue.cached_count) == (3, 0, 0)


def test_what_a_new_filter_lets_go_is_counted_with_what_waits_behind_a_key() -> None:
    queue = queue_of(["a", "a", "a", "b", ""])
    assert queue.discard_unwanted(lambda message: message.queue_offset not in (0, 1, 4)) == 3
    assert (offsets(queue.take(9)), queue.cached_count) == ([3, 2], 2)


async def test_who_waits_for_room_is_woken_as_a_paused_queue_is_left() -> None:
    queue = queue_of(["a"])
    queue.pause()
    waiting = asyncio.create_task(queue.wait_for_room())
    await asyncio.sleep(0)
    queue.start_release()
    await asyncio.wait_for(waiting, 5)
    assert not queue.is_paused


def test_what_fails_after_its_queue_was_left_has_one_more_attempt_below_a_finished_one() -> None:
    """The next owner would handle the finished one again. After that attempt there is none."""
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


def test_a_message_in_its_second_attempt_is_owed_none_when_its_queue_is_left() -> None:
    """It does not rest any more, so that the queue is idle when it is finished."""
    queue = queue_of(["a", "b"])
    zero, one = queue.take(2)
    queue.postpone([zero])
    queue.return_postponed([zero])
    queue.take(1)
    queue.finish([one])
    queue.start_release()
    queue.finish([zero])
    assert (queue.is_busy, queue.commit_offset()) == (False, 2)


def test_nothing_is_finished_above_where_an_owner_finished_nothing() -> None:
    """Wherever it began."""
    queue = queue_of(["a"], offset=5)
    queue.start_release()
    assert (queue.commit_offset(), queue.finished_above_commit_offset()) == (5, 0)


async def test_a_queue_that_waits_no_more_is_idle_though_a_message_rests() -> None:
    """Who waits for that hears of it, and what fails later has no more attempt."""
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


def test_a_dropped_queue_hands_out_nothing_of_a_key_whose_message_comes_back() -> None:
    """Another one has what waits behind it."""
    queue = queue_of(["a", "a", "b"])
    zero, two = queue.take(2)
    queue.drop("handed_over")
    assert queue.waiting_count == 0
    queue.finish([zero, two])
    assert not queue.pending


def test_a_left_queue_that_is_dropped_waits_for_nothing_that_rests() -> None:
    queue = queue_of(["a", "b"])
    zero, one = queue.take(2)
    queue.finish([one])
    queue.postpone([zero])
    queue.start_release()
    assert queue.is_busy
    queue.drop("handed_over")
    assert not queue.is_busy


def test_what_comes_again_after_a_correction_is_the_next_owners() -> None:
    """The highest message that was handled is among it: with nothing finished above them, they can wait."""
    queue = queue_of(["a", "b", "c"])
    queue.finish(queue.take(3))
    queue.continue_at(1)
    more(queue, ["b", "c", "c"])
    assert (offsets(queue.pending), queue.waiting_count) == ([1, 2], 3)
    queue.start_release()
    assert (offsets(queue.pending), queue.waiting_count, queue.cached_count) == ([1], 1, 1)


def test_what_comes_again_behind_its_key_is_the_next_owners_too() -> None:
    queue = queue_of(["a", "b", "b"])
    queue.finish(queue.take(2))
    queue.finish(queue.take(1))
    queue.continue_at(1)
    more(queue, ["b", "b"])
    queue.start_release()
    assert (offsets(queue.pending), queue.waiting_count, queue.cached_count) == ([1], 1, 1)


def test_what_came_again_and_failed_is_owed_no_attempt_below_itself() -> None:
    """That it was finished once is no reason: nothing above it is."""
    queue = queue_of(["a", "b"])
    queue.finish(queue.take(2))
    queue.continue_at(1)
    more(queue, ["b"])
    queue.postpone(queue.take(1))
    queue.start_release()
    assert (queue.is_busy, queue.commit_offset()) == (False, 1)
