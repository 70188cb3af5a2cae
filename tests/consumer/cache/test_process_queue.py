"""The cache of one queue: the messages to hand out, and the offset that may be committed."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.messages.message import Message, MessageBlock
from tests.consumer.blocks import QUEUE, block_of


def queue_from(offset: int = 0) -> ProcessQueue:
    return ProcessQueue(QUEUE, offset, TopicStats(QUEUE.topic, is_retry=False))


def queue_of(*blocks: MessageBlock) -> ProcessQueue:
    """Return a queue that received these responses one after the other."""
    queue = queue_from(blocks[0].messages[0].queue_offset)
    for block in blocks:
        queue.put(block, block.messages[-1].queue_offset + 1)
    return queue


def offsets(messages: Iterable[Message]) -> list[int]:
    return [message.queue_offset for message in messages]


def test_finished_messages_of_blocks_that_are_gone_do_not_count_for_the_span() -> None:
    queue = queue_of(block_of(range(3)), block_of(range(3, 6)), block_of(range(6, 8)))
    counts = []
    for number in (2, 1, 2, 3):
        queue.finish(queue.take(number))
        counts.append(queue.finished_since_first_block())
    assert counts == [2, 0, 2, 0]


def test_a_paused_queue_hands_out_nothing_and_keeps_its_order() -> None:
    """Also if messages are pulled, put back, or discarded by a new filter."""
    queue = queue_of(block_of(range(10, 14)))
    taken = queue.take(1)
    queue.pause()
    queue.put(block_of(range(14, 17)), 17)
    queue.put_back(taken)
    assert not queue.pending
    assert queue.discard_unwanted(lambda message: message.queue_offset != 12) == 1
    assert (queue.commit_offset(), queue.cached_count) == (10, 6)
    queue.resume()
    assert offsets(queue.take(9)) == [10, 11, 13, 14, 15, 16]


def test_messages_are_taken_in_order_and_batches_are_full_while_enough_is_cached() -> None:
    """A batch may span two responses."""
    queue = queue_of(block_of(range(10, 13)), block_of(range(13, 18)))
    assert offsets(queue.take(4)) == [10, 11, 12, 13]
    assert offsets(queue.take(1)) == [14]
    assert offsets(queue.take(4)) == [15, 16, 17]
    assert not queue.pending


def test_commit_offset_is_the_smallest_unfinished_one() -> None:
    """Messages may finish in any order. With none left, it is the next offset to pull."""
    queue = queue_of(block_of(range(5, 8)), block_of(range(8, 10)))
    assert queue.commit_offset() == 5
    five, six, seven, eight, nine = queue.take(5)
    queue.finish([eight, nine])
    queue.finish([six])
    assert queue.commit_offset() == 5
    queue.finish([five])
    assert queue.commit_offset() == 7
    assert queue.cached_count == 1
    queue.finish([seven])
    assert queue.commit_offset() == 10
    assert (queue.cached_count, queue.cached_bytes, queue.span()) == (0, 0, 0)


def test_messages_that_the_broker_filtered_out_count_as_consumed() -> None:
    """Its filter may skip to an offset far above the last message."""
    queue = queue_from(5)
    queue.put(block_of([6, 8]), 40)
    assert queue.commit_offset() == 6
    queue.finish(queue.take(2))
    assert queue.commit_offset() == 40


def test_unwanted_messages_of_a_response_are_neither_handed_out_nor_waited_for() -> None:
    """The local tag check skips them before the response is put."""
    queue, block = queue_from(0), block_of(range(4))
    for message in block.messages[::2]:
        queue.skip(message)
    queue.put(block, 4)
    assert queue.cached_count == 2
    assert queue.commit_offset() == 1
    taken = queue.take(5)
    assert offsets(taken) == [1, 3]
    queue.finish(taken)
    assert (queue.commit_offset(), queue.cached_count, queue.cached_bytes) == (4, 0, 0)


def test_a_response_without_wanted_messages_only_moves_the_offset() -> None:
    """It is not kept, and workers do not get it."""
    queue, block = queue_from(0), block_of(range(4))
    for message in block.messages:
        queue.skip(message)
    queue.put(block, 4)
    assert not queue.pending
    assert (queue.commit_offset(), queue.cached_bytes, queue.oldest()) == (4, 0, None)


def test_span_is_the_distance_of_the_cached_offsets() -> None:
    """From the first unfinished to the last cached one."""
    queue = queue_of(block_of([3, 4]), block_of([100]))
    assert queue.span() == 97
    queue.finish(queue.take(1))
    assert queue.span() == 96


def test_cached_bytes_are_those_of_the_kept_responses() -> None:
    """A response is kept whole until the last of its messages is finished."""
    first, second = block_of(range(3), body=b"a" * 1000), block_of(range(3, 6), body=b"b" * 2000)
    sizes = first.size_bytes, second.size_bytes
    assert sizes[0] > 3000
    queue = queue_of(first, second)
    zero, one, *rest = queue.take(6)
    assert queue.cached_bytes == sum(sizes)
    queue.finish(rest)  # the second response, and the last message of the first
    assert queue.cached_bytes == sizes[0]
    queue.finish([zero, one])
    assert queue.cached_bytes == 0


def test_a_batch_of_two_responses_finishes_both() -> None:
    queue = queue_of(block_of([0, 1]), block_of([2, 3]))
    queue.finish(queue.take(4))
    assert (queue.commit_offset(), queue.cached_count, queue.cached_bytes) == (4, 0, 0)


def test_messages_that_are_put_back_are_handed_out_again_in_queue_order() -> None:
    """They may fail in any order, and precede messages that were not handed out yet."""
    queue = queue_of(block_of(range(6)))
    zero, one, two, three = queue.take(4)
    queue.put_back([two])
    queue.put_back([zero, one])
    assert offsets(queue.take(2)) == [0, 1]
    queue.put_back([three])
    assert offsets(queue.take(9)) == [2, 3, 4, 5]
    assert queue.commit_offset() == 0


def test_a_release_hands_out_nothing_and_keeps_the_offset_below_waiting_messages() -> None:
    """Messages in flight may finish and be committed."""
    queue = queue_of(block_of(range(10)))
    zero, one = queue.take(2)
    queue.start_release()
    assert not queue.pending
    queue.finish([one])
    assert (queue.commit_offset(), queue.finished_above_commit_offset()) == (0, 1)
    queue.finish([zero])
    assert (queue.commit_offset(), queue.finished_above_commit_offset()) == (2, 0)


def test_a_message_put_back_below_one_in_flight_does_not_count_as_finished() -> None:
    """Neither does the message in flight."""
    queue = queue_of(block_of(range(3)))
    zero, _ = queue.take(2)
    queue.put_back([zero])
    queue.start_release()
    assert (queue.commit_offset(), queue.cached_count, queue.finished_above_commit_offset()) == (0, 1, 0)


def test_put_count_excludes_unwanted_messages() -> None:
    """Without the cached messages it is the number of finished ones, which shows whether the queue moves."""
    queue, block = queue_from(0), block_of(range(4))
    assert queue.put_count == 0
    queue.skip(block.messages[0])
    queue.put(block, 4)
    queue.put(block_of([4, 5]), 6)
    assert (queue.put_count, queue.put_count - queue.cached_count) == (5, 0)
    queue.finish(queue.take(2))
    assert (queue.put_count, queue.put_count - queue.cached_count) == (5, 2)


def test_a_queue_is_batching_from_hold_until_batch_is_full_until_it_is_reset() -> None:
    """Without waiting messages it is not batching."""
    queue = queue_of(block_of(range(2)))
    assert not queue.is_batching
    assert queue.hold_until_batch_is_full()
    assert queue.is_batching
    queue.is_batching = False
    assert not queue.is_batching
    queue.take(2)
    assert not queue.hold_until_batch_is_full()
    assert not queue.is_batching


def test_a_full_queue_cannot_fill_a_batch_if_no_handler_has_messages_of_it() -> None:
    queue = queue_of(block_of(range(3)))
    for is_full, is_batching in ((False, False), (True, False), (False, True)):
        queue.is_full, queue.is_batching = is_full, is_batching
        assert not queue.cannot_fill_batch
    queue.is_full = True
    assert queue.cannot_fill_batch
    queue.take(1)
    assert not queue.cannot_fill_batch


def test_a_queue_waits_for_room_while_it_is_full() -> None:
    queue = queue_of(block_of(range(2)))
    assert not queue.waits_for_room
    for is_full in (True, False):
        queue.is_full = is_full
        assert queue.waits_for_room == is_full


def test_the_commit_offset_does_not_check_finished_messages_again() -> None:
    """It is read often, and a response may have thousands of messages behind a slow one."""
    queue = queue_of(block_of(range(9)))
    taken = queue.take(9)
    for message in taken[:5]:
        queue.finish([message])
    assert queue.commit_offset() == 5
    assert queue.blocks[0].cursor == 5
    taken[0].finished = False  # not read again
    assert queue.commit_offset() == 5


def test_drop_discards_all_messages() -> None:
    """Later results change nothing."""
    queue = queue_of(block_of(range(4)))
    [first, second] = queue.take(2)
    queue.hold_uncommitted([first])
    queue.pause()
    queue.drop("handed_over")
    assert queue.dropped
    queue.commit()
    queue.resume()
    assert not queue.pending
    assert (queue.cached_count, queue.cached_bytes, queue.oldest()) == (0, 0, None)
    queue.finish([first, second])
    assert queue.cached_bytes == 0


def test_a_dropped_queue_does_not_subtract_the_bytes_of_a_response_twice() -> None:
    """A handler may have all messages of a response, and finish them later."""
    queue = queue_of(block_of(range(2)), block_of(range(2, 4)))
    taken = queue.take(4)
    queue.drop("handed_over")
    queue.finish(taken[:2])  # all of a response at once
    for message in taken[2:]:
        queue.finish([message])
    assert queue.cached_bytes == 0


def test_the_release_of_a_paused_queue_discards_waiting_messages() -> None:
    """The next owner gets them. Only messages in flight are waited for."""
    queue = queue_of(block_of(range(5)))
    [zero, one] = queue.take(2)
    queue.pause()
    queue.start_release()
    assert not queue.waiting
    assert (queue.cached_count, queue.handed_out_to) == (2, 2)
    queue.finish([one])
    assert (queue.commit_offset(), queue.finished_above_commit_offset()) == (0, 1)
    queue.finish([zero])
    assert (queue.commit_offset(), queue.finished_above_commit_offset(), queue.cached_count) == (2, 0, 0)


def test_a_queue_may_be_paused_again() -> None:
    """Messages of the first pause are not handed out twice."""
    queue = queue_of(block_of(range(3)))
    for _ in range(2):
        queue.pause()
        queue.resume()
    assert offsets(queue.take(9)) == [0, 1, 2]


def test_newest_store_timestamp_only_rises() -> None:
    """Over responses and filtered messages. The last store timestamp is that of the last message."""
    queue = queue_from(0)
    queue.put(block_of([]), 0)
    assert (queue.last_store_timestamp, queue.newest_store_timestamp) == (0, 0)
    ages = []
    for start, stored_ms in ((0, 5000), (2, 4000)):
        block = block_of([start, start + 1], store_timestamp=stored_ms)
        block.messages[0].store_timestamp -= 1000
        queue.put(block, start + 2)
        ages.append((queue.last_store_timestamp, queue.newest_store_timestamp))
    assert ages == [(5000, 5000), (4000, 5000)]
    queue.note_skipped_by_broker(3000)
    assert queue.newest_store_timestamp == 5000
    queue.note_skipped_by_broker(7000)
    assert queue.newest_store_timestamp == 7000


def test_a_batch_that_begins_in_one_response_does_not_finish_the_next_one() -> None:
    """Although it has as many messages as the next response has."""
    queue = queue_of(block_of([0]), block_of([1, 2, 3]))
    queue.finish(queue.take(3))
    assert (queue.commit_offset(), queue.cached_count) == (3, 1)
    queue.finish(queue.take(1))
    assert (queue.commit_offset(), queue.cached_bytes) == (4, 0)


def test_a_batch_that_ends_in_the_next_response_does_not_finish_earlier_messages() -> None:
    """Although it has as many messages as its first response has left. A commit would pass a message in flight."""
    queue = queue_of(block_of([0, 1]), block_of([2, 3]))
    first, batch = queue.take(1), queue.take(2)
    queue.finish(batch)
    assert (queue.commit_offset(), queue.cached_count) == (0, 2)
    queue.finish([*first, *queue.take(1)])
    assert (queue.commit_offset(), queue.cached_bytes) == (4, 0)


async def test_wait_for_room_ends_when_messages_finish_or_a_pause_ends() -> None:
    queue = queue_of(block_of(range(2)))
    waiting = asyncio.create_task(queue.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.finish(queue.take(1))
    await waiting
    waiting = asyncio.create_task(queue.wait_for_room())
    await asyncio.sleep(0)
    queue.resume()
    await waiting


async def test_a_queue_is_idle_when_its_last_turn_has_ended() -> None:
    """Several workers may take batches of one queue at once."""
    queue = queue_of(block_of(range(2)))
    await queue.wait_idle()
    queue.begin_turn()
    queue.begin_turn()
    waiting = asyncio.create_task(queue.wait_idle())
    await asyncio.sleep(0)
    queue.end_turn()
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.end_turn()
    await waiting


def test_postponed_messages_are_handed_out_again_unless_the_queue_is_released() -> None:
    queue = queue_of(block_of(range(3)))
    taken = queue.take(2)
    queue.postpone(taken)
    assert (queue.retrying, offsets(queue.pending)) == (2, [2])
    assert queue.return_postponed(taken)
    assert (queue.retrying, offsets(queue.pending)) == (0, [0, 1, 2])
    queue.postpone(queue.take(2))
    queue.start_release()
    assert not queue.return_postponed(taken)
    assert (queue.retrying, offsets(queue.pending), queue.commit_offset()) == (0, [], 0)


def test_uncommitted_messages_are_finished_by_a_commit() -> None:
    """A rollback does not finish them. The order of acknowledgements makes no difference."""
    queue = queue_of(block_of(range(3)))
    one, two, _ = queue.take(3)
    queue.hold_uncommitted([two])
    assert queue.roll_back() == [two]
    queue.commit()
    assert queue.commit_offset() == 0
    queue.hold_uncommitted([two])
    queue.hold_uncommitted([one])
    assert queue.commit_offset() == 0
    queue.commit()
    assert (queue.commit_offset(), queue.uncommitted) == (2, [])


@pytest.mark.parametrize("end", ["finished", "dropped", "unwanted"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_memory_of_a_response_is_freed_without_the_garbage_collector(end: str, batch_size: int) -> None:
    """The daemon collects garbage rarely, so a finished response must not wait for it."""
    gc.disable()
    try:
        if end == "unwanted":
            queue, block = queue_from(0), block_of(range(6))
            gone = weakref.ref(_Token.of(block))
            for message in block.messages:
                queue.skip(message)
            queue.put(block, 6)
            del block, message
        else:
            queue = queue_of(block_of(range(6)))
            gone = weakref.ref(_Token.of(queue.blocks[0]))
        while end == "finished" and queue.pending:
            queue.finish(queue.take(batch_size))
        if end == "dropped":
            queue.drop("handed_over")
        assert gone() is None
    finally:
        gc.enable()


class _Token:
    """A stand-in for a response's memory. Messages and blocks have slots, and so no weak references."""

    @classmethod
    def of(cls, block: MessageBlock) -> _Token:
        token = cls()
        block.decompressed = {-1: token}  # type: ignore[dict-item]
        return token


def take(queue: ProcessQueue, most: int) -> list[Message]:
    """Take messages as a worker does: only if some wait."""
    return queue.take(most) if queue.pending else []


@settings(max_examples=40)
@given(st.data())
def test_any_order_of_finishing_keeps_the_offset_right(data: st.DataObject) -> None:
    """Against the plain definition: the smallest offset that is wanted and not finished, else the next one to pull."""
    queue, model, next_offset = queue_from(0), set[int](), 0
    handed: dict[int, Message] = {}
    for _ in range(data.draw(st.integers(1, 5), label="replies")):
        found = sorted(data.draw(st.sets(st.integers(next_offset, next_offset + 9), min_size=1), label="offsets"))
        unwanted = data.draw(st.sets(st.sampled_from(found)), label="unwanted")
        block, next_offset = block_of(found), next_offset + 10
        for message in block.messages:
            if message.queue_offset in unwanted:
                queue.skip(message)
        queue.put(block, next_offset)
        model |= set(found) - unwanted
        for _ in range(data.draw(st.integers(0, 3), label="batches")):
            handed |= {message.queue_offset: message for message in take(queue, data.draw(st.integers(1, 4)))}
        done = sorted(data.draw(st.sets(st.sampled_from(sorted(handed))), label="done")) if handed else []
        queue.finish([handed.pop(offset) for offset in done])
        model -= set(done)
        assert queue.commit_offset() == min(model, default=next_offset)
        assert queue.cached_count == len(model)
    assert (queue.cached_bytes == 0) == (not model)


def test_a_queue_that_continues_at_a_lower_offset_commits_no_higher() -> None:
    """Until the cached messages are finished, they overlap with other messages at the same offsets."""
    queue = queue_of(block_of(range(10, 14)))
    queue.finish(queue.take(3))
    queue.continue_at(11)
    assert (queue.commit_offset(), queue.next_pull_overlaps_cache()) == (11, True)
    queue.finish(queue.take(1))
    assert (queue.commit_offset(), queue.next_pull_overlaps_cache()) == (11, False)


def test_a_cached_message_at_the_next_offset_overlaps_the_next_pull() -> None:
    """Whichever response it came with."""
    queue = queue_of(block_of([10, 11]), block_of([12, 13]))
    assert not queue.next_pull_overlaps_cache()
    queue.continue_at(13)
    assert queue.next_pull_overlaps_cache()


def test_a_held_message_is_not_handed_out_and_no_commit_passes_it() -> None:
    queue = queue_from(10)
    block = block_of(range(10, 13))
    held = block.messages[1]
    queue.put(block, 13, [held])
    taken = queue.take(5)
    assert offsets(taken) == [10, 12]
    queue.finish(taken)
    assert queue.commit_offset() == 11
    queue.finish([held])
    assert (queue.commit_offset(), queue.cached_count) == (13, 0)
