"""Deadlines of calls, and the effects of hanging handlers on their group."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode
from rmqd.consumer.consumer_options import DeduplicationOptions, FailureOptions
from rmqd.consumer.handling.handler_failures import HandlerHungError
from rmqd.consumer.handling.slots import CANCEL_GRACE_SECONDS
from rmqd.handler_api.batch import Batch
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.pool import TIMEOUT_SECONDS, Gate, StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

GRACE_SECONDS = 5.5  # a little longer than a cancelled handler may take to end


async def test_an_async_handler_is_cancelled_at_its_deadline(pool: StartPool, broker: ScriptedBroker) -> None:
    """Its batch is sent back with delay level 3, the slot stays usable, and the next call has its own deadline."""
    clock, gate = ManualClock(), Gate()
    async with pool(gate, clock=clock, concurrency=1) as running:
        queue = running.queue(2)
        for number in (1, 2):
            await eventually(lambda: gate.at_once == 1, "a handler has a batch")
            await clock.advance(TIMEOUT_SECONDS - 1)
            assert len(broker.sent_back) == number - 1
            await clock.advance(1.5)
            await eventually(lambda number=number: len(broker.sent_back) == number, "the batch is sent back")  # type: ignore[misc]
        await eventually(done(queue), "nothing is left")
        assert running.service.abandoned == 0
    assert [header.delay_level for header in broker.sent_back] == [3, 3]
    assert handled(queue) == {"expired": 2}
    assert queue.commit_offset() == 2


@pytest.mark.parametrize("decided", ["acknowledged", "a dead letter"])
async def test_decisions_of_a_retry_in_place_count_although_it_expires(
    pool: StartPool, broker: ScriptedBroker, decided: str
) -> None:
    """The retry gets only a part of the batch, because the first call acknowledged the rest."""
    clock, parts = ManualClock(), list[int]()

    async def handle(batch: Batch) -> None:
        parts.append(len(batch))
        if decided == "acknowledged" or len(parts) == 1:
            batch.ack(batch[0])
        else:
            batch.dead_letter(batch[0], "it is bad")
        if len(parts) == 1:
            raise ConnectionError
        await asyncio.Event().wait()

    once = FailureOptions(1, 0.1, 0.1, frozenset(), frozenset())
    options = {"concurrency": 1, "consume_message_batch_max_size": 3}
    async with pool(handle, clock=clock, failures=once, **options) as running:
        queue = running.queue(3)
        await eventually(lambda: parts == [3], "the call has failed")
        await clock.advance(0.2)
        await eventually(lambda: parts == [3, 2], "the call is retried")
        await clock.advance(TIMEOUT_SECONDS + 1)
        await eventually(done(queue), "nothing is left")
    both = {"acked": 2} if decided == "acknowledged" else {"acked": 1, "dead_lettered": 1}
    assert handled(queue) == {**both, "expired": 1}


@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_the_result_of_a_cancelled_handler_is_ignored(
    pool: StartPool, broker: ScriptedBroker, ending: str
) -> None:
    """If it returns or raises another error, the batch is still sent back, and the slot stays usable."""
    clock, began = ManualClock(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset % 2:
            return
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ending == "raises":
                raise RuntimeError("while cleaning up") from None

    async with pool(handle, clock=clock, concurrency=1) as running:
        queue = running.queue(4)
        for _ in range(2):
            await began.wait()
            began.clear()
            await clock.advance(TIMEOUT_SECONDS + 1)
        await eventually(done(queue), "nothing is left")
    assert [header.offset for header in broker.sent_back] == [0, 0]  # commit log offsets, all 0 here
    assert handled(queue) == {"acked": 2, "expired": 2}


async def test_a_cancellation_that_a_handler_raises_is_an_ordinary_failure(
    pool: StartPool, broker: ScriptedBroker
) -> None:
    """For example the cancellation of a task that it awaits. The slot stays usable, and the batch is retried."""

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 0:
            task = asyncio.create_task(asyncio.sleep(9))
            task.cancel()
            await task

    async with pool(handle, concurrency=1) as running:
        queue = running.queue(3)
        await eventually(done(queue), "all are handled")
    assert handled(queue) == {"acked": 2, "retried": 1}
    assert queue.stats.snapshot().exceptions == {"CancelledError": 1}


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_an_expired_sync_handler_is_abandoned_in_its_thread(
    pool: StartPool, broker: ScriptedBroker, tmp_path: Path, is_claimed: bool
) -> None:
    """The slot is freed at once, and the later result is ignored."""
    clock, let_go = ManualClock(), threading.Event()

    def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 0:
            let_go.wait(10)
            raise RuntimeError("too late to matter")

    claims = DeduplicationOptions("keys", "sqlite", str(tmp_path / "claims"), 3600.0) if is_claimed else None
    async with pool(handle, is_async=False, clock=clock, concurrency=2, deduplication=claims) as running:
        queue = running.queue(1)
        await eventually(running.service.calls, "the handler has a batch")
        await clock.advance(TIMEOUT_SECONDS)
        await eventually(done(queue), "the batch is sent back")
        assert running.service.abandoned == 1
        running.give(queue, 20)
        await eventually(done(queue), "the others are handled")
        let_go.set()
        await eventually(lambda: running.service.abandoned == 0, "the call has ended")
    assert handled(queue) == {"acked": 20, "expired": 1}
    assert len(broker.sent_back) == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_group_fails_when_every_slot_hangs(pool: StartPool, broker: ScriptedBroker, is_async: bool) -> None:
    """Otherwise it would do nothing forever. The hung batches are sent back first, also to a slow broker."""
    clock, let_go = ManualClock(), threading.Event()

    async def send_back(_: object) -> Reply:
        await clock.sleep(CANCEL_GRACE_SECONDS - 1)
        return Reply()

    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, send_back)

    calls: list[int] = []

    def hang(batch: Batch) -> None:
        calls.append(batch[0].queue_offset)
        let_go.wait(10)

    async def ignore(batch: Batch) -> None:
        calls.append(batch[0].queue_offset)
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async with pool(ignore if is_async else hang, is_async=is_async, clock=clock, concurrency=2) as running:
        queue = running.queue(4)
        await eventually(lambda: queue.in_flight == 2, "both slots are taken")
        await clock.advance(TIMEOUT_SECONDS + 1)
        if is_async:
            await asyncio.sleep(0.05)
            await clock.advance(GRACE_SECONDS)
        try:
            async with clock.flowing():
                with pytest.raises(HandlerHungError, match="all 2 calls of handler testing"):
                    await running.task
        finally:
            let_go.set()
    assert handled(queue) == {"expired": 2}, "the hung messages are sent back, so that the next start does not hang"
    assert sorted(calls) == [0, 1], "nothing more is handed out"


async def test_the_end_of_a_group_does_not_wait_for_a_handler_that_ignores_it(pool: StartPool) -> None:
    """The handler has a short time to end, and is then left behind."""
    clock, let_go, calls = ManualClock(), asyncio.Event(), 0

    async def handle(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    with capture_logs() as logs:
        async with pool(handle, clock=clock, concurrency=1) as running:
            queue = running.queue(5)
            await eventually(lambda: queue.in_flight == 1, "the handler has a batch")
            running.task.cancel()
            await clock.advance(CANCEL_GRACE_SECONDS)
            with pytest.raises(asyncio.CancelledError):
                await running.task
    let_go.set()
    await asyncio.sleep(0)
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["handler.left_behind"]
    assert calls == 1, "the handler gets no more messages"


async def test_a_slow_send_back_does_not_shorten_the_next_deadline(pool: StartPool, broker: ScriptedBroker) -> None:
    """The time of a send-back does not count as time of the next call."""
    clock, gate = ManualClock(), Gate()

    async def send_back(_: object) -> Reply:
        clock.turn(TIMEOUT_SECONDS - 1)
        return Reply()

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 0:
            raise RuntimeError("failed")
        await gate(batch)

    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, send_back)
    async with pool(handle, clock=clock, concurrency=1) as running:
        queue = running.queue(2)
        await eventually(lambda: gate.at_once == 1, "the second message is handled")
        await clock.advance(5)
        assert gate.at_once == 1, "the call is not cancelled"
        gate.open.set()
        await eventually(done(queue), "all are handled")
    assert handled(queue) == {"acked": 1, "retried": 1}


async def test_the_end_of_a_group_cancels_abandoned_calls_once_more(pool: StartPool) -> None:
    """An abandoned call may accept a second cancellation, and nothing would cancel it later."""
    clock, cancelled = ManualClock(), 0

    async def handle(batch: Batch) -> None:
        nonlocal cancelled
        while cancelled < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1

    async with pool(handle, clock=clock, concurrency=2) as running:
        queue = running.queue(1)
        await eventually(lambda: queue.in_flight == 1, "the handler has a batch")
        await clock.advance(TIMEOUT_SECONDS)
        await clock.advance(GRACE_SECONDS)
        await eventually(done(queue), "the batch is sent back")
        assert cancelled == 1
    assert cancelled == 2
    assert queue.stats.snapshot().handler_duration.count == 0, "the end of an abandoned call does not count as a call"


async def test_the_end_of_a_group_does_not_wait_for_a_send_back(pool: StartPool, broker: ScriptedBroker) -> None:
    """The messages are not finished, so they are redelivered. No call of the handler is left."""
    asked = asyncio.Event()

    async def send_back(_: object) -> Reply:
        asked.set()
        await asyncio.Event().wait()
        return Reply()

    async def handle(batch: Batch) -> None:
        raise RuntimeError("failed")

    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, send_back)
    async with pool(handle, clock=ManualClock(), concurrency=1) as running:
        running.queue(1)
        await asked.wait()
        running.task.cancel()
        await asyncio.wait((running.task,), timeout=5)
        assert running.task.done()
        assert not running.service.calls_left


@pytest.mark.parametrize("when", ["at once", "while the worker rests", "while the broker is asked"])
async def test_a_cancellation_left_by_a_handler_does_not_reach_the_next_call(
    pool: StartPool, broker: ScriptedBroker, when: str
) -> None:
    """For example a handler's own timeout that it forgot to cancel."""
    tasks, counts = list[asyncio.Task[None]](), list[int]()

    async def send_back(_: object) -> Reply:
        tasks[0].cancel()
        await asyncio.sleep(0.01)
        return Reply()

    async def handle(batch: Batch) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        counts.append(task.cancelling())
        if batch[0].queue_offset == 0 and when == "at once":
            task.cancel()
        elif batch[0].queue_offset == 0 and when == "while the broker is asked":
            raise RuntimeError("failed")
        elif batch[0].queue_offset == 1:
            await asyncio.sleep(0)  # a pending cancellation would arrive here

    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, send_back)
    async with pool(handle, concurrency=1) as running:
        queue = running.queue(1 if when == "while the worker rests" else 2)
        if when == "while the worker rests":
            await eventually(lambda: done(queue)() and running.service.ready_queues.can_wake, "the worker waits")
            tasks[0].cancel()
            await asyncio.sleep(0)
            running.give(queue, 1)
        await eventually(done(queue), "all are handled")
    assert counts == [0, 0]
    assert handled(queue) == ({"acked": 1, "retried": 1} if when == "while the broker is asked" else {"acked": 2})
