"""Which messages of a queue can be taken where each key is kept in order, by schedules that are drawn."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from rmqd.consumer.cache.keyed_process_queue import KeyedProcessQueue, key_by
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.messages.message import Message
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


class Schedule:
    """What was put, and where each message is, beside the queue itself."""

    def __init__(self) -> None:
        self.queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", key_by("keys"))
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
                queue.let_go(lambda message: message.keys != key)

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
    queue.leave()
    schedule.end_all(most)
    while schedule.resting:
        schedule.step("again", 0)
    schedule.end_all(most)
    offset = queue.commit_offset()
    finished = {message.queue_offset for message in schedule.messages if is_done(message)}
    assert schedule.handled - before <= set(range(max(had, default=-1) + 1))
    assert queue.finished_above() == sum(one > offset for one in finished)
    assert not queue.is_busy
    if is_free:
        assert not [one for one in finished if one > offset]


def test_corrupt_messages_hold_no_key() -> None:
    """The pull loop finishes them by itself; the next one of their key can be taken at once."""
    queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", key_by("keys"))
    block = keyed_block(0, ["a", "a", "a"])
    corrupt = block.messages[0]
    queue.put(block, 3, held=[corrupt])
    assert [one.queue_offset for one in queue.take(3)] == [1]
    queue.finish([corrupt])
    assert not queue.pending
    assert queue.commit_offset() == 1


def test_a_message_without_the_property_waits_for_none() -> None:
    queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", key_by("property:account"))
    queue.put(block_of(range(3)), 3)
    assert len(queue.take(3)) == 3


def test_a_property_of_ones_own_is_a_key() -> None:
    queue = KeyedProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False), "", key_by("property:account"))
    queue.put(block_of(range(3), properties={"account": "7"}), 3)
    assert len(queue.take(3)) == 1
