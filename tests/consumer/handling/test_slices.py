"""Turns of workers: time slices, deadlines, counted times, and the end of workers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Iterable, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.consumer_options import CanaryOptions
from rmqd.consumer.handling.ready_queues import ReadyQueues
from rmqd.consumer.stats.counters import QUICK_SECONDS
from rmqd.handler_api.batch import Batch
from tests.clock import ManualClock
from tests.consumer.blocks import block_of
from tests.consumer.pool import TIMEOUT_SECONDS, Gate, StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

SLICE = "rmqd.consumer.handling.batch_worker.TIME_SLICE_SECONDS"


def blocks(logs: Iterable[MutableMapping[str, Any]]) -> list[tuple[str, Any]]:
    """The reported blocks of the event loop: the handler and the seconds."""
    return [(entry["handler"], entry["seconds"]) for entry in logs if entry["event"] == "handler.blocked_loop"]


class Failure(Exception):
    """An exception that can have weak references."""


def failure() -> asyncio.Future[None]:
    """A future that fails soon."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_soon(future.set_exception, Failure())
    return future


class Order:
    """A handler that remembers the queues of its batches, and takes some of the clock's time for each."""

    def __init__(self, clock: ManualClock, seconds: float = 0.0) -> None:
        self.queues: list[int] = []
        self._clock = clock
        self._seconds = seconds

    async def __call__(self, batch: Batch) -> None:
        self.queues.append(batch.message_queue.queue_id)
        self._clock.turn(self._seconds)


async def test_a_turn_lasts_until_its_slice_is_over(pool: StartPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch that begins at the very end of the slice is the last one. Then the other queue has its turn."""
    monkeypatch.setattr(SLICE, 0.5)
    clock = ManualClock()
    handle = Order(clock, 0.25)
    async with pool(handle, clock=clock, concurrency=1) as running:
        running.service.pause()
        queues = [running.queue(4, number) for number in (1, 2)]
        running.service.resume()
        await eventually(lambda: all(done(queue)() for queue in queues), "all are handled")
    assert handle.queues == [1, 1, 1, 2, 2, 2, 1, 2]


async def test_halting_a_queue_ends_only_its_own_turn(pool: StartPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much of the slice is left."""
    monkeypatch.setattr(SLICE, 60.0)
    clock = ManualClock()
    handle = Order(clock)

    async def halting(batch: Batch) -> None:
        await handle(batch)
        if len(handle.queues) == 1:
            running.service.halt(queues[1])
        if len(handle.queues) == 2:
            running.service.halt(queues[0])

    async with pool(halting, clock=clock, concurrency=1) as running:
        running.service.pause()
        queues = [running.queue(4, number) for number in (1, 2)]
        running.service.resume()
        await eventually(lambda: all(done(queue)() for queue in queues), "all are handled")
    assert handle.queues == [1, 1, 2, 2, 2, 2, 1, 1]


async def test_each_batch_of_a_turn_has_its_own_deadline(pool: StartPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier batches of the same turn do not count."""
    monkeypatch.setattr(SLICE, 3600.0)
    clock = ManualClock()

    async def handle(batch: Batch) -> None:
        await clock.sleep(TIMEOUT_SECONDS * 0.7)

    async with pool(handle, clock=clock, concurrency=1) as running:
        queue = running.queue(3)
        await eventually(lambda: queue.in_flight == 1, "a handler has a batch")
        await clock.advance(TIMEOUT_SECONDS * 2.2)
        await eventually(done(queue), "all are handled")
        assert running.service.calls() == []
    assert handled(queue) == {"acked": 3}


async def test_messages_of_quick_calls_are_finished_while_a_later_call_waits(pool: StartPool) -> None:
    """Otherwise a slow call would keep the commit offset below them."""
    gate = Gate()

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 3:
            await gate(batch)

    async with pool(handle, concurrency=1) as running:
        queue = running.queue(5)
        await eventually(lambda: gate.at_once == 1, "the fourth call waits")
        await asyncio.sleep(0)
        assert (queue.commit_offset(), handled(queue)) == (3, {"acked": 3})
        gate.open.set()
        await eventually(done(queue), "all are handled")
    assert handled(queue) == {"acked": 5}


async def test_quick_calls_are_counted_with_their_durations(pool: StartPool) -> None:
    clock = ManualClock()
    handle = Order(clock, QUICK_SECONDS / 2)
    async with pool(handle, clock=clock, concurrency=1) as running:
        await clock.advance(1)
        queue = running.queue(4)
        await eventually(done(queue), "all are handled")
    duration = queue.stats.snapshot().handler_duration
    assert duration.count == 4
    assert duration.sum == pytest.approx(2 * QUICK_SECONDS)


async def test_a_pause_applies_to_a_worker_that_waits_for_its_handler(pool: StartPool) -> None:
    """The worker waits for example while the processes of its handler start."""
    gate, waits, is_ready = Gate(), asyncio.Event(), asyncio.Event()
    gate.open.set()

    async def ready() -> None:
        waits.set()
        await is_ready.wait()

    async with pool(gate, concurrency=1) as running:
        running.service._handler.ready = ready
        queue = running.queue(2)
        await waits.wait()
        running.service.pause()
        is_ready.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not gate.batches
        running.service.resume()
        await eventually(done(queue), "both are handled")
    assert handled(queue) == {"acked": 2}


@pytest.mark.parametrize("then", ["continue", "fail", "halt"])
async def test_messages_of_quick_calls_count_as_duplicates_if_their_queue_is_dropped(
    pool: StartPool, then: str
) -> None:
    """The next owner handles them again, because no commit passes them."""

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 2:
            queue.drop("lock_lost")
            if then == "halt":
                running.service.halt(queue)
            if then == "fail":
                raise RuntimeError

    async with pool(handle, clock=ManualClock(), concurrency=1) as running:
        queue = running.queue(5)
        await eventually(lambda: not queue.in_flight and queue.dropped, "the turn has ended")
    assert (queue.cached_count, handled(queue)) == (0, {})
    assert queue.stats.snapshot().duplicates == {"lock_lost": 3}


@pytest.mark.parametrize("fails", [False, True])
async def test_a_call_counts_with_its_time_and_the_age_of_its_oldest_message(pool: StartPool, *, fails: bool) -> None:
    """The age is the one at the call's end, by the wall clock, also after the clock was set."""
    clock = ManualClock()

    async def handle(batch: Batch) -> None:
        clock.turn(2)
        if fails:
            raise RuntimeError("no")

    async with pool(handle, clock=clock, concurrency=1, consume_message_batch_max_size=2) as running:
        queue = running.queue(0)
        for number, wall_jump in enumerate((0.0, 100.0)):
            clock._wall_offset += wall_jump
            await clock.advance(1)
            block = block_of([2 * number, 2 * number + 1], queue.message_queue)
            for message, age in zip(block.messages, (10, 5), strict=True):
                message.store_timestamp = round((clock.wall() - age) * 1000)
            queue.put(block, 2 * number + 2)
            running.service.submit(queue)
            await eventually(done(queue), "it is handled")
    snapshot = queue.stats.snapshot()
    assert (snapshot.handler_duration.count, snapshot.handler_duration.sum) == (2, 4.0)
    assert snapshot.message_age.count == 4
    assert snapshot.message_age.sum == pytest.approx(48.0, abs=0.1)


async def test_two_messages_of_two_queues_are_handled_at_once(pool: StartPool) -> None:
    """A worker that starts wakes another one if more messages wait."""
    gate = Gate()
    async with pool(gate, concurrency=3) as running:
        await eventually(lambda: len(running.service.ready_queues.sleeping_workers) == 3, "every worker waits for work")
        running.service.pause()
        queues = [running.queue(1, number) for number in (1, 2)]
        running.service.resume()
        await eventually(lambda: gate.at_once == 2, "both are handled")
        assert {call.process_queue for call in running.service.calls()} == set(queues)
        gate.open.set()
        await eventually(lambda: all(done(queue)() for queue in queues), "all are handled")


async def test_only_a_call_that_blocks_the_loop_for_more_than_a_second_is_reported(pool: StartPool) -> None:
    """A call that awaits for longer is not. A call that fails is reported too."""
    clock = ManualClock()
    seconds = iter((0.9, 1.0, 1.1, 1.2))

    async def handle(batch: Batch) -> None:
        if batch.message_queue.queue_id == 5:
            await clock.sleep(2)
        else:
            clock.turn(next(seconds))
        if batch.message_queue.queue_id == 4:
            raise ValueError

    with capture_logs() as logs:
        async with pool(handle, clock=clock, concurrency=1) as running:
            for number in (1, 2, 3, 4):
                await clock.advance(0.25)
                await clock.advance(0.125)  # a tick came before the call
                queue = running.queue(1, number)
                await eventually(done(queue), "it is handled")
            queue = running.queue(1, 5)
            await clock.until(done(queue), "it is handled")
    assert blocks(logs) == [("testing", pytest.approx(1.1)), ("testing", pytest.approx(1.2))]


@pytest.mark.parametrize(
    "run",
    [
        lambda work: work,
        lambda work: asyncio.wait_for(work, 60),
        lambda work: asyncio.gather(asyncio.create_task(work)),
    ],
)
async def test_a_call_that_blocks_the_loop_and_also_awaits_is_reported(pool: StartPool, run: Any) -> None:
    """Whether the wait before succeeded or failed. A second call that waits meanwhile is not reported."""
    clock, gate = ManualClock(), Gate()

    async def work() -> None:
        await asyncio.sleep(0)
        clock.turn(1.2)  # a tick is due
        with contextlib.suppress(Failure):
            await failure()
        clock.turn(1.3)
        await clock.sleep(0.5)
        gate.open.set()

    async def handle(batch: Batch) -> None:
        await (gate(batch) if batch.message_queue.queue_id == 1 else run(work()))

    with capture_logs() as logs:
        async with pool(handle, clock=clock, concurrency=2) as running:
            queues = [running.queue(1, number) for number in (1, 2)]
            await clock.until(lambda: all(done(queue)() for queue in queues), "both are handled")
    assert blocks(logs) == [("testing", pytest.approx(1.2)), ("testing", pytest.approx(1.3))]


async def test_calls_work_if_a_task_factory_awaits_the_coroutines_of_tasks(pool: StartPool) -> None:
    """Libraries that trace or report errors set such factories."""

    def create(loop: asyncio.AbstractEventLoop, coro: Any, **named: Any) -> asyncio.Task[Any]:
        async def traced() -> Any:
            return await coro

        return asyncio.Task(traced(), loop=loop, **named)

    async def handle(batch: Batch) -> None:
        await asyncio.sleep(0)

    asyncio.get_running_loop().set_task_factory(create)
    async with pool(handle) as running:
        queue = running.queue(2)
        await eventually(done(queue), "both are handled")


async def test_a_shadow_call_that_blocks_the_loop_is_reported(pool: StartPool) -> None:
    clock = ManualClock()

    async def handle(_: Batch) -> None:
        return

    async def shadow(_: Batch) -> None:
        clock.turn(1.2)

    with capture_logs() as logs:
        canary = CanaryOptions(1.0, "keys", "shadow")
        async with pool(handle, second=shadow, clock=clock, concurrency=1, canary=canary) as running:
            running.queue(1)
            await eventually(lambda: blocks(logs), "it is reported")
    assert blocks(logs) == [("testing", pytest.approx(1.2))]


async def test_the_failure_of_a_handlers_task_is_freed_without_the_garbage_collector(pool: StartPool) -> None:
    """It refers to the handler's variables, such as the batch."""
    failures = list[weakref.ref[BaseException]]()

    async def fail() -> None:
        await failure()

    async def handle(batch: Batch) -> None:
        try:
            await asyncio.create_task(fail())
        except Failure as error:
            failures.append(weakref.ref(error))

    gc.disable()
    try:
        async with pool(handle) as running:
            queue = running.queue(2)
            await eventually(done(queue), "both are handled")
            assert [reference() for reference in failures] == [None, None]
    finally:
        gc.enable()


async def test_a_handler_that_cancels_its_own_task_does_no_harm(pool: StartPool) -> None:
    """The cancellation affects neither its result nor the next call's."""

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    async with pool(handle, concurrency=1) as running:
        queue = running.queue(3)
        await eventually(done(queue), "all are handled")
    assert handled(queue) == {"acked": 3}


@pytest.mark.parametrize("takes_back", [False, True])
async def test_a_hanging_slot_gets_a_new_worker_after_the_grace_period(
    pool: StartPool, broker: ScriptedBroker, *, takes_back: bool
) -> None:
    """Then as many batches run at once as before. The later result of the hanging call does not count.

    Some handlers take their cancellation back, as if it were their own timeout.
    """
    clock, let_go, gate = ManualClock(), asyncio.Event(), Gate()

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset:
            await gate(batch)
            return
        task = asyncio.current_task()
        assert task is not None
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()
            if takes_back:
                task.uncancel()

    async with pool(handle, clock=clock, concurrency=2) as running:
        queue = running.queue(1)
        await eventually(lambda: queue.in_flight == 1, "the handler has a batch")
        await clock.advance(TIMEOUT_SECONDS + 4.7)
        assert running.service.abandoned == 0
        await clock.advance(0.8)
        assert running.service.abandoned == 1
        await eventually(done(queue), "the batch is sent back")
        running.give(queue, 4)
        await eventually(lambda: gate.at_once == 2, "two are handled at once")
        let_go.set()
        gate.open.set()
        await eventually(lambda: done(queue)() and running.service.abandoned == 0, "all has ended")
    assert handled(queue) == {"acked": 4, "expired": 1}
    assert len(broker.sent_back) == 1


@pytest.mark.parametrize("ends", [True, False])
async def test_calls_left_shows_whether_a_call_may_still_run(pool: StartPool, *, ends: bool) -> None:
    """Meanwhile an orderly group keeps its locks."""
    clock, let_go, began = ManualClock(), asyncio.Event(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        began.set()
        while not (ends or let_go.is_set()):
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    async with pool(handle, clock=clock, concurrency=2) as running:
        assert running.service.calls_left
        running.queue(1)
        await began.wait()
        running.task.cancel()
        await clock.advance(6)
        with pytest.raises(asyncio.CancelledError):
            await running.task
    assert running.service.calls_left == (not ends)
    let_go.set()
    await asyncio.sleep(0)


async def test_nothing_begins_after_the_end_of_a_group(pool: StartPool) -> None:
    """Neither a call nor the settlement of a late call begins, because another member has the messages."""
    clock, let_go, calls = ManualClock(), asyncio.Event(), list[str | None]()

    async def handle(batch: Batch) -> None:
        calls.append(batch[0].keys)
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    async with pool(handle, clock=clock, concurrency=4, order_by="keys") as running:
        queue = running.keyed(["a"])
        await clock.until(lambda: running.service.abandoned == 1, "the call is abandoned")
        running.task.cancel()
        await clock.until(running.task.done, "the group has ended")
        let_go.set()
        running.give_keys(queue, ["b"])
        for _ in range(10):
            await asyncio.sleep(0)
        assert running.service.abandoned == 0, "the call has ended"
    assert (calls, queue.in_flight, handled(queue)) == (["a"], 1, {})


async def test_threads_end_with_their_group(pool: StartPool) -> None:
    """Otherwise each reload would leave more threads."""
    seen: list[threading.Thread] = []

    def handle(batch: Batch) -> None:
        seen.append(threading.current_thread())

    async with pool(handle, is_async=False, concurrency=1) as running:
        queue = running.queue(1)
        await eventually(done(queue), "it is handled")
    await eventually(lambda: not seen[0].is_alive(), "its thread has ended", 5)


async def test_ready_queues_that_were_paused_twice_have_each_queue_once(pool: StartPool) -> None:
    async with pool(Gate(), concurrency=1) as running:
        line = ReadyQueues()
        queue = running.queue(3)
        line.submit(queue)
        for _ in range(2):
            line.pause()
            line.resume()
        assert list(line.queues) == [queue]
        running.service.ready_queues.queues.clear()


async def test_a_sleeping_worker_that_was_cancelled_is_not_woken(pool: StartPool) -> None:
    """Otherwise no worker would take the waiting messages."""
    line = ReadyQueues()
    resting = asyncio.create_task(line.wait_for_work())
    await asyncio.sleep(0)
    assert line.can_wake
    resting.cancel()
    await asyncio.wait((resting,))
    assert (line.can_wake, line.sleeping_workers) == (False, [])
