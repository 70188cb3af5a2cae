"""Batches of an orderly group: one at a time for each queue, with suspensions, deadlines and pauses."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.services import Ownership
from rmqd.handler_api.batch import Batch, Retry, Suspend
from tests.clock import ManualClock
from tests.consumer.pool import TIMEOUT_SECONDS, Gate, StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

ORDERLY: dict[str, Any] = {"consume_mode": "orderly", "suspend_current_queue_time_seconds": 0.02}
GRACE_SECONDS = 5.5  # a little longer than a cancelled handler may take to end


class Attempts:
    """A handler that records offsets and reconsume times, and fails a given number of times."""

    def __init__(self, failures: int, *, at: int = 0, error: BaseException | None = None) -> None:
        self.seen: list[tuple[int, int]] = []
        self._left = failures
        self._at = at
        self._error = error or RuntimeError("no")

    @property
    def offsets(self) -> list[int]:
        return [offset for offset, _ in self.seen]

    async def __call__(self, batch: Batch) -> None:
        self.seen += [(message.queue_offset, message.reconsume_times) for message in batch]
        if self._left and self._at in [message.queue_offset for message in batch]:
            self._left -= 1
            raise self._error


async def test_a_queue_has_one_batch_at_a_time_and_the_slots_serve_several_queues(pool: StartPool) -> None:
    """One queue takes one slot, however many slots there are."""
    gate = Gate()
    async with pool(gate, concurrency=4, **ORDERLY) as running:
        first = running.queue(10, 0)
        await eventually(lambda: gate.at_once == 1, "a batch is handled")
        running.give(first, 5)
        second = running.queue(3, 1)
        await eventually(lambda: gate.at_once == 2, "the other queue is handled too")
        gate.open.set()
        await eventually(lambda: done(first)() and done(second)(), "all is handled")
    assert gate.most == 2
    assert [batch[0].queue_offset for batch in gate.batches if batch.message_queue.queue_id == 0] == list(range(15))


async def test_queues_that_become_ready_together_are_handled_together(pool: StartPool) -> None:
    """One worker wakes the next."""
    gate = Gate()
    async with pool(gate, concurrency=4, **ORDERLY) as running:
        for _ in range(2):  # the first time starts the workers
            gate.open.clear()
            await eventually(
                lambda: len(running.service.ready_queues.sleeping_workers) == 4, "every worker waits for work"
            )
            queues = [running.queue(1, number) for number in range(2)]
            await eventually(lambda: gate.at_once == 2, "both are handled")
            gate.open.set()
            await eventually(lambda: all(done(queue)() for queue in queues), "all is handled")  # noqa: B023


@pytest.mark.parametrize("error", [RuntimeError("no"), Retry(delay_level=5), Suspend()])
async def test_a_failed_batch_is_retried_in_place(pool: StartPool, broker: ScriptedBroker, error: Exception) -> None:
    """No later message overtakes it, nothing is sent, and reconsume times count each attempt."""
    clock, handle = ManualClock(), Attempts(3, at=1, error=error)
    async with pool(handle, clock=clock, **ORDERLY) as running:
        queue = running.queue(3)
        await eventually(lambda: bool(queue.retrying), "the queue is suspended")
        assert queue.commit_offset() == 1
        await clock.until(done(queue), "all is handled")
    assert handle.seen == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)]
    assert handled(queue) == {"acked": 3, "retried": 3}
    assert (queue.retrying, queue.commit_offset()) == (0, 3)
    assert not broker.sent_back
    assert not broker.sent


@pytest.mark.parametrize(
    ("wanted", "setting", "rest"),
    [(None, 0.2, 0.2), (0.1, 3600.0, 0.1), (0.0, 3600.0, 0.01), (-3, 3600.0, 0.01), (3600, 0.2, 30.0)],
)
async def test_a_queue_is_suspended_as_long_as_suspend_says(
    pool: StartPool, wanted: float | None, setting: float, rest: float
) -> None:
    """By default as long as the group's setting. Limited to 10 ms to 30 s, as Java's suspendCurrentQueueTimeMillis."""
    clock, handle = ManualClock(), Attempts(1, error=Suspend(wanted))
    options: dict[str, Any] = {"consume_mode": "orderly", "suspend_current_queue_time_seconds": setting}
    async with pool(handle, clock=clock, **options) as running:
        queue = running.queue(1)
        await eventually(lambda: bool(queue.retrying), "the queue is suspended")
        await clock.advance(rest * 0.99)
        assert queue.retrying == 1
        await clock.advance(rest * 0.02)
        await eventually(done(queue), "it is handled")


async def test_a_suspension_that_ends_before_its_turn_gives_the_queue_no_second_worker(pool: StartPool) -> None:
    """An event loop that was busy for longer than the suspension sees both end at once."""
    clock, gate, attempts = ManualClock(), Gate(), 0

    async def handle(batch: Batch) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise Suspend
        await gate(batch)

    async with pool(handle, clock=clock, concurrency=3, **ORDERLY) as running:
        queue = running.queue(3)
        while not queue.retrying:  # noqa: ASYNC110 - a moment later the turn has ended
            await asyncio.sleep(0)
        clock.turn(1)
        await eventually(lambda: gate.batches, "it is retried")
        await clock.advance(2)
        gate.open.set()
        await clock.until(done(queue), "all is handled")
        await clock.advance(2)
        assert not running.task.done()
    assert gate.most == 1
    assert [batch[0].queue_offset for batch in gate.batches] == [0, 1, 2]
    assert handled(queue) == {"acked": 3, "retried": 1}


@pytest.mark.parametrize("end", ["leave", "drop"])
async def test_a_suspended_queue_that_is_released_or_dropped_hands_out_nothing(pool: StartPool, end: str) -> None:
    """The next owner handles the suspended messages."""
    clock, handle = ManualClock(), Attempts(1, error=Suspend())
    async with pool(handle, clock=clock, **ORDERLY) as running:
        queue = running.queue(2)
        await eventually(lambda: bool(queue.retrying), "the queue is suspended")
        if end == "leave":
            queue.start_release()
        else:
            queue.drop("handed_over")
        await clock.until(lambda: not queue.retrying, "the suspension is over")
        await clock.advance(1)
        assert handle.offsets == [0]
        assert queue.commit_offset() == (0 if end == "leave" else 2)


async def test_a_suspended_queue_does_not_occupy_a_slot(pool: StartPool) -> None:
    """Its new messages wait behind the failed batch."""
    clock, handle = ManualClock(), Attempts(1, error=Suspend())
    async with pool(handle, clock=clock, concurrency=1, **ORDERLY) as running:
        queue = running.queue(1)
        await eventually(lambda: bool(queue.retrying), "the queue is suspended")
        running.give(queue, 2)
        other = running.queue(5, 1)
        await eventually(done(other), "the other queue is handled")
        assert queue.retrying == 1
        assert queue.cached_count == 3
        await clock.until(done(queue), "the suspended queue is handled")
    assert handle.offsets == [0, 0, 1, 2, 3, 4, 0, 1, 2]


@pytest.mark.parametrize(("limit", "attempts"), [(0, 1), (2, 3)])
async def test_a_failed_last_attempt_makes_a_dead_letter(
    pool: StartPool, broker: ScriptedBroker, limit: int, attempts: int
) -> None:
    """N reconsume times make N + 1 attempts. The queue continues after the message without a suspension."""
    handle = Attempts(99, at=1)
    with capture_logs() as logs:
        async with pool(handle, max_reconsume_times=limit, **ORDERLY) as running:
            queue = running.queue(3)
            await eventually(done(queue), "all is done")
    told = [line["next_attempt"] for line in logs if line["event"] == "handler.failed"]
    assert told == ["in 20 ms, here"] * limit + ["none: max_reconsume_times reached"]
    assert handle.seen == [(0, 0), *((1, times) for times in range(attempts)), (2, 0)]
    [sent] = broker.sent
    assert (sent.header.topic, sent.header.reconsume_times) == ("%DLQ%g1", limit)
    assert sent.properties["RMQD_REASON"] == "max_reconsume_times reached"
    assert sent.properties["RMQD_EXCEPTION"].strip().endswith("RuntimeError: no")
    assert {k: v for k, v in handled(queue).items() if v} == (
        {"acked": 2, "dead_lettered": 1} | ({"retried": attempts - 1} if attempts > 1 else {})
    )


@pytest.mark.parametrize("order", [{}, {"order_by": "keys"}], ids=["orderly", "order_by"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_an_expired_call_is_reported_once_and_its_result_counts(
    pool: StartPool, is_async: bool, order: dict[str, Any]
) -> None:
    """As in Java, which has no timeout here. A retry would take as long, so retries would never end."""
    clock, let_go, seen = ManualClock(), threading.Event(), list[int]()

    def handle(batch: Batch) -> None:
        seen.append(batch[0].queue_offset)
        let_go.wait(10)

    async def handle_in_loop(batch: Batch) -> None:
        seen.append(batch[0].queue_offset)
        while not let_go.is_set():  # noqa: ASYNC110 - both kinds end by the same event
            await asyncio.sleep(0.001)

    options = {"max_reconsume_times": 0, "concurrency": 1, **ORDERLY, **order}
    with capture_logs() as logs:
        async with pool(
            handle_in_loop if is_async else handle, is_async=is_async, clock=clock, leases=Ownership(), **options
        ) as running:
            queue = running.keyed(["a", "a"]) if order else running.queue(2)
            await eventually(lambda: bool(seen), "the handler has a message")
            for _ in range(3):
                await clock.advance(TIMEOUT_SECONDS + GRACE_SECONDS)
            assert running.service.abandoned == 0
            let_go.set()
            await clock.until(done(queue), "all is handled")
    assert seen == [0, 1]
    assert handled(queue) == {"acked": 2}
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["handler.timed_out"]
    assert queue.stats.exceptions == {"ConsumeTimeoutError": 1}


async def test_a_paused_group_hands_out_nothing_after_a_suspension(pool: StartPool) -> None:
    """The suspended messages are handed out after the pause."""
    clock, handle = ManualClock(), Attempts(1, error=Suspend())
    async with pool(handle, clock=clock, **ORDERLY) as running:
        queue = running.queue(2)
        await eventually(lambda: bool(queue.retrying), "the queue is suspended")
        running.service.pause()
        await clock.advance(1)
        assert handle.offsets == [0]
        running.service.resume()
        await eventually(done(queue), "all is handled")
    assert handle.offsets == [0, 0, 1]
