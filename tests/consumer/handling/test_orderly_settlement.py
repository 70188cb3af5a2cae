"""Settlement of each message of an orderly batch, and commits by a handler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch, DeadLetter, Retry
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.pool import StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

BATCHES: dict[str, Any] = {
    "consume_mode": "orderly",
    "suspend_current_queue_time_seconds": 0.02,
    "consume_message_batch_max_size": 10,
}
MANUAL: dict[str, Any] = {**BATCHES, "auto_commit": False, "consume_message_batch_max_size": 1}


class Script:
    """A handler that takes one step for each batch, and then acknowledges. Records offsets and reconsume times."""

    def __init__(self, *steps: Callable[[Batch], object]) -> None:
        self.seen: list[list[int]] = []
        self.times: list[list[int]] = []
        self._steps = list(steps)

    async def __call__(self, batch: Batch) -> None:
        self.seen.append([message.queue_offset for message in batch])
        self.times.append([message.reconsume_times for message in batch])
        if self._steps:
            self._steps.pop(0)(batch)


def nothing(batch: Batch) -> None:
    """Acknowledge the batch."""


def commit(batch: Batch) -> None:
    batch.commit()


def roll_back(batch: Batch) -> None:
    batch.rollback()


def fail(batch: Batch) -> None:
    raise RuntimeError("no")


async def test_messages_before_the_first_failed_one_are_finished(pool: StartPool) -> None:
    """The failed message and later ones are retried, except the one that the handler acknowledged itself."""

    def decide(batch: Batch) -> None:
        batch.retry(batch[2])
        batch.ack(batch[4])

    clock, handle = ManualClock(), Script(decide)
    async with pool(handle, clock=clock, **BATCHES) as running:
        queue = running.queue(6)
        await eventually(lambda: bool(queue.retrying), "the queue is suspended")
        assert queue.commit_offset() == 2
        await clock.until(done(queue), "all is handled")
    assert handle.seen == [[0, 1, 2, 3, 4, 5], [2, 3, 5]]
    assert handle.times == [[0] * 6, [1, 0, 0]], "the later messages did not fail"
    assert handled(queue) == {"acked": 6, "retried": 3}


async def test_messages_that_the_handler_acknowledges_count_once(pool: StartPool) -> None:
    def accept(batch: Batch) -> None:
        for message in batch:
            batch.ack(message)

    handle = Script(accept)
    async with pool(handle, **BATCHES) as running:
        queue = running.queue(3)
        await eventually(lambda: queue.commit_offset() == 3 and not queue.in_flight, "all is handled")
    assert handled(queue) == {"acked": 3}
    assert (queue.cached_count, handle.seen) == (0, [[0, 1, 2]])


async def test_an_exception_retries_all_undecided_messages(pool: StartPool) -> None:
    """Also messages before a decided one."""

    def decide(batch: Batch) -> None:
        batch.ack(batch[0])
        batch.ack(batch[2])
        raise RuntimeError("no")

    clock, handle = ManualClock(), Script(decide)
    async with pool(handle, clock=clock, **BATCHES) as running:
        queue = running.queue(4)
        await eventually(lambda: bool(queue.retrying), "the queue is suspended")
        assert queue.commit_offset() == 1
        await clock.until(done(queue), "all is handled")
    assert handle.seen == [[0, 1, 2, 3], [1, 3]]
    assert handle.times[1] == [1, 1]


async def test_a_retried_batch_is_filled_up_with_later_messages(pool: StartPool) -> None:
    """In the queue's order. A batch is full whenever enough messages are cached."""
    clock, handle = ManualClock(), Script(fail)
    async with pool(handle, clock=clock, **{**BATCHES, "consume_message_batch_max_size": 3}) as running:
        queue = running.queue(2)
        await eventually(lambda: bool(queue.retrying), "the queue is suspended")
        running.give(queue, 3)
        await clock.until(done(queue), "all is handled")
    assert handle.seen == [[0, 1], [0, 1, 2], [3, 4]]
    assert handle.times[1] == [1, 1, 0]


async def test_dead_letters_by_message_are_sent_without_a_delay(pool: StartPool, broker: ScriptedBroker) -> None:
    """A message between them that must be retried keeps its position. Level -1 means a dead letter here too."""

    def decide(batch: Batch) -> None:
        batch.dead_letter(batch[0], "broken")
        batch.retry(batch[1])
        batch.retry(batch[2], delay_level=-1)
        batch.dead_letter(batch[3], "broken too")

    handle = Script(decide)
    async with pool(handle, **BATCHES) as running:
        queue = running.queue(5)
        await eventually(done(queue), "all is done")
    assert handle.seen == [[0, 1, 2, 3, 4], [1, 4]]
    assert [sent.properties["RMQD_REASON"] for sent in broker.sent] == ["broken", "delay level -1", "broken too"]
    assert handled(queue) == {"acked": 2, "retried": 2, "dead_lettered": 3}


@pytest.mark.parametrize("error", [DeadLetter("never"), Retry(delay_level=-1)])
async def test_dead_letters_by_exception(pool: StartPool, broker: ScriptedBroker, error: Exception) -> None:
    """Every undecided message becomes one, and the queue is not suspended."""

    def give_up(batch: Batch) -> None:
        batch.ack(batch[1])
        raise error

    handle = Script(give_up)
    async with pool(handle, **BATCHES) as running:
        queue = running.queue(3)
        await eventually(done(queue), "all is done")
    assert handle.seen == [[0, 1, 2]]
    assert handled(queue) == {"acked": 1, "dead_lettered": 2}
    causes = {cause: count for cause, count in queue.stats.snapshot().dead_letters.items() if count}
    assert causes == {"handler" if isinstance(error, DeadLetter) else "level": 2}
    assert sum(queue.stats.snapshot().dead_letter_reasons.values()) == 2
    assert len(broker.sent) == 2


async def test_messages_behind_a_refused_dead_letter_wait(pool: StartPool, broker: ScriptedBroker) -> None:
    """The refused message keeps its position, and is handed out again."""
    refused = Reply(ResponseCode.SYSTEM_ERROR, "no")
    broker.peer.on(RequestCode.SEND_MESSAGE_V2, refused)
    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, refused)
    handle = Script(lambda batch: batch.dead_letter(batch[1], "broken"))
    async with pool(handle, **BATCHES) as running:
        queue = running.queue(3)
        await eventually(done(queue), "all is done")
    assert handle.seen == [[0, 1, 2], [1, 2]]
    assert handled(queue) == {"acked": 3, "retried": 2}


async def test_a_dead_letter_that_is_being_sent_for_a_dropped_queue_counts_as_duplicate(
    pool: StartPool, broker: ScriptedBroker
) -> None:
    """The next owner gets all messages of its batch again."""
    taken_up = asyncio.Event()

    async def take_up_later(command: RemotingCommand) -> Reply:
        await taken_up.wait()
        return Reply(ResponseCode.SUCCESS)

    broker.peer.on(RequestCode.SEND_MESSAGE_V2, take_up_later)
    async with pool(Script(lambda batch: batch.dead_letter(batch[1], "broken")), **BATCHES) as running:
        queue = running.queue(2)
        await broker.peer.received(RequestCode.SEND_MESSAGE_V2)
        queue.drop("offset_moved")
        taken_up.set()
        await eventually(lambda: queue.stats.snapshot().duplicates == {"offset_moved": 2}, "both count")
    assert handled(queue) == {}


async def test_without_auto_commit_the_offset_stays_until_the_handler_commits(pool: StartPool) -> None:
    """`commit` covers all messages handled since the last commit, including this batch."""
    handle = Script(nothing, nothing, commit, nothing)
    async with pool(handle, **MANUAL) as running:
        queue = running.queue(2)
        await eventually(lambda: len(handle.seen) == 2 and not queue.in_flight, "two are handled")
        assert (queue.commit_offset(), queue.cached_count, len(queue.uncommitted)) == (0, 2, 2)
        running.give(queue, 2)
        await eventually(lambda: len(handle.seen) == 4 and not queue.in_flight, "four are handled")
        assert (queue.commit_offset(), queue.cached_count) == (3, 1)
    assert handle.seen == [[0], [1], [2], [3]]
    assert handled(queue) == {"acked": 4}


async def test_rollback_redelivers_messages_handled_since_the_last_commit(pool: StartPool) -> None:
    """After a suspension, in order, with this batch. As in Java, no attempt counts. The offset never decreases."""
    clock, handle = ManualClock(), Script(nothing, commit, nothing, roll_back, nothing, commit)
    async with pool(handle, clock=clock, max_reconsume_times=0, **MANUAL) as running:
        queue = running.queue(5)
        await eventually(lambda: bool(queue.retrying), "the queue is suspended")
        assert (queue.commit_offset(), queue.retrying) == (2, 2)
        await clock.until(lambda: len(handle.seen) == 7 and not queue.in_flight, "all are handled")
        assert queue.commit_offset() == 4
    assert [at for [at] in handle.seen] == [0, 1, 2, 3, 2, 3, 4]
    assert {times for [times] in handle.times} == {0}
    assert handled(queue) == {"acked": 6, "retried": 1}


async def test_a_failed_batch_does_not_roll_back_earlier_batches(pool: StartPool) -> None:
    """They stay handled and uncommitted. If the failed batch committed, they are committed."""

    def commit_and_fail(batch: Batch) -> None:
        batch.commit()
        raise RuntimeError("no")

    handle = Script(nothing, fail, nothing, nothing, commit_and_fail)
    async with pool(handle, **MANUAL) as running:
        queue = running.queue(3)
        await eventually(lambda: len(handle.seen) == 4, "they are handled")
        assert queue.commit_offset() == 0
        running.give(queue, 1)
        await eventually(lambda: queue.commit_offset() == 3, "the earlier batches are committed")
        await eventually(lambda: len(handle.seen) == 6, "the failed batch is retried")
    assert [at for [at] in handle.seen] == [0, 1, 1, 2, 3, 3]


async def test_a_commit_does_not_pass_a_message_that_must_be_retried(pool: StartPool) -> None:
    """Its neighbours were acknowledged in different calls, and arrived in two responses."""

    def decide(batch: Batch) -> None:
        batch.ack(batch[1])
        batch.ack(batch[3])
        raise RuntimeError("no")

    def commit_all_but_one(batch: Batch) -> None:
        batch.ack(batch[0])
        batch.retry(batch[1])
        batch.commit()

    handle = Script(decide, commit_all_but_one, fail)
    options = {**MANUAL, "consume_message_batch_max_size": 4}
    async with pool(handle, **options) as running:
        running.service.pause()
        queue = running.queue(3)
        running.give(queue, 1)
        running.service.resume()
        await eventually(lambda: len(handle.seen) == 3, "it is retried")
        assert queue.commit_offset() == 2
    assert handle.seen[:3] == [[0, 1, 2, 3], [0, 2], [2]]


async def test_messages_handled_in_another_order_are_committed_together(pool: StartPool) -> None:
    """First a later message by its own acknowledgement, then the retried message before it."""

    def decide(batch: Batch) -> None:
        batch.ack(batch[1])
        batch.retry(batch[0])

    handle = Script(decide, commit)
    async with pool(handle, **{**MANUAL, "consume_message_batch_max_size": 2}) as running:
        queue = running.queue(2)
        await eventually(done(queue), "all is committed")
    assert handle.seen == [[0, 1], [0]]
    assert queue.commit_offset() == 2
