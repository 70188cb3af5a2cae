"""Batches of a handler: how many at once, how full, and in which order."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any, cast

import pytest

from rmqd.consumer.consumer_options import FailureOptions
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError
from rmqd.consumer.handling.ready_queues import ReadyQueues
from rmqd.handler_api.batch import Batch
from tests.clock import ManualClock
from tests.consumer.groups import group_options
from tests.consumer.pool import Gate, Pool, StartPool, done, handled
from tests.waiting import eventually


def test_paused_queues_are_sorted_by_their_first_messages() -> None:
    """As far as the order of a queue allows. A queue whose messages were all taken has none to hand out."""
    ready = ReadyQueues()
    alone = Pool(cast("Any", ready), cast("Any", None), is_by_key=True)
    alone.queue(1).take(1)
    assert not ready.has_messages
    alone.keyed("a", 1)
    alone.keyed("cb", 2)
    assert ready.has_messages
    ready.pause()
    assert ready.has_messages
    ready.sort_paused(lambda message: ord("z") - ord(message.keys or ""))
    ready.resume()
    assert [[message.keys for message in queue.pending] for queue in ready.queues] == [[], ["c", "b"], ["a"]]


async def test_a_worker_that_parks_wakes_another_and_none_is_woken_after_the_end() -> None:
    ready, started = ReadyQueues(), list[int]()
    alone = Pool(cast("Any", ready), cast("Any", None), is_by_key=False)
    asleep = [asyncio.create_task(ready.wait_for_work()) for _ in range(2)]
    await asyncio.sleep(0)
    alone.queue(1)
    for _ in range(2):
        await asyncio.sleep(0)
    assert [task.done() for task in asleep] == [False, True]
    ready.admit_workers(-1)
    parked = asyncio.create_task(ready.wait_until_admitted())
    await asyncio.wait_for(asyncio.gather(*asleep), 5)
    ready.queues.clear()
    ready.admit_workers(-1)
    last = asyncio.create_task(ready.wait_until_admitted())
    await asyncio.sleep(0)
    for first in (0, 2):
        ready.add_workers(range(first, first + 2), started.append)
    assert (ready.idle_workers, parked.done()) == (6, False)
    ready.admit_workers(1)
    await last
    assert not parked.done(), "only one more is admitted"
    ready.admit_workers(1)
    await parked
    ready.remove_workers()
    alone.queue(1, 1)
    assert (started, ready.idle_workers) == ([], 0)


async def test_times_of_calls_follow_a_wall_clock_that_was_set_while_the_group_was_idle(pool: StartPool) -> None:
    """A message has a start only during its own call."""
    clock, batches, starts = ManualClock(), list[Batch](), list[list[int | None]]()

    async def handle(batch: Batch) -> None:
        batches.append(batch)
        starts.append([one[0].consume_start_timestamp for one in batches])

    async with pool(handle, clock=clock, concurrency=1) as running:
        await clock.until(lambda: running.service.ready_queues._on_wake is not None, "the group is idle")
        clock._wall_offset += 3600
        queue = running.queue(3)
        await eventually(done(queue), "all are handled")
    now = clock.wall()
    assert starts == [[*[None] * number, int(now * 1000)] for number in range(3)]
    assert queue.stats.snapshot().message_age.sum == pytest.approx(3 * now)


async def test_a_handler_that_is_not_awaited_ends_the_group_which_retrieves_every_failure(
    pool: StartPool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()

    async def handle(batch: Batch) -> object:
        return [asyncio.get_running_loop().create_future()]

    async def run() -> None:
        async with pool(handle, clock=clock, concurrency=2) as running:
            queue = running.queue(4)
            await clock.until(running.task.done, "the group has ended")
            assert (queue.commit_offset(), handled(queue)) == (0, {})

    with pytest.raises(HandlerNotAwaitedError):
        await run()
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize("concurrency", [1, 3, 20])
async def test_a_group_handles_as_many_batches_at_once_as_its_concurrency(pool: StartPool, concurrency: int) -> None:
    """One queue alone can take all slots."""
    gate = Gate()
    async with pool(gate, concurrency=concurrency) as running:
        await eventually(
            lambda: len(running.service.ready_queues.sleeping_workers) == concurrency, "every worker waits for work"
        )
        assert not running.service.keeps_calls_open, "the handler has no end_calls"
        queue = running.queue(50)
        await eventually(lambda: gate.at_once == concurrency, f"{concurrency} batches are handled at once")
        gate.open.set()
        await eventually(done(queue), "all are handled")
    assert gate.most == concurrency
    assert handled(queue) == {"acked": 50}


@pytest.mark.parametrize("is_auto", [False, True])
async def test_the_concurrency_changes_while_the_group_runs(pool: StartPool, is_auto: bool) -> None:
    """A higher limit applies at once, a lower one as running calls end. `auto` begins with one call."""
    calls: list[asyncio.Future[None]] = []

    async def handle(batch: Batch) -> None:
        calls.append(asyncio.get_running_loop().create_future())
        await calls[-1]

    def at_once() -> int:
        return sum(not call.done() for call in calls)

    async with pool(handle, concurrency=2) as running:
        queue = running.queue(20)
        await eventually(lambda: at_once() == 2, "two batches are handled at once")
        running.service.change(group_options(concurrency=4))
        await eventually(lambda: at_once() == 4, "four batches are")
        running.service.change(group_options(concurrency=4 if is_auto else 1, auto_concurrency=is_auto))
        assert running.service.concurrency == 1
        for number in range(10):
            await eventually(lambda: len(calls) > number, "the next one is handled")  # noqa: B023
            assert at_once() <= max(4 - number, 1)
            calls[number].set_result(None)
        running.service.change(group_options(concurrency=3))
        await eventually(lambda: at_once() == 3, "three are handled at once")
        for number in range(10, 20):
            await eventually(lambda: len(calls) > number, "the next one is handled")  # noqa: B023
            calls[number].set_result(None)
        await eventually(done(queue), "all are handled")


async def test_a_parked_worker_whose_task_the_handler_cancels_late_stays_parked(pool: StartPool) -> None:
    """For example by a timer of an earlier call."""
    gate, workers = Gate(), set[asyncio.Task[Any]]()

    async def handle(batch: Batch) -> None:
        workers.add(cast("asyncio.Task[Any]", asyncio.current_task()))
        await gate(batch)

    async with pool(handle, concurrency=2) as running:
        queue, ready = running.queue(2), running.service.ready_queues
        await eventually(lambda: gate.at_once == 2, "two batches are handled at once")
        running.service.change(group_options(concurrency=1))
        gate.open.set()
        await eventually(lambda: ready.idle_workers == 2, "one worker waits for work, and one is parked")
        for worker in workers:
            worker.cancel()
        await eventually(lambda: not any(one.cancelling() for one in workers), "the cancellations have arrived")
        assert (len(ready.parked_workers), ready.idle_workers, ready.excess_workers) == (1, 2, 0)
        gate.open.clear()
        running.service.change(group_options(concurrency=2))
        running.give(queue, 2)
        await eventually(lambda: gate.at_once == 2, "both workers work again")
        gate.open.set()


async def test_synchronous_handlers_run_at_once_in_threads(pool: StartPool) -> None:
    """None runs in the event loop's thread, which continues meanwhile."""
    barrier = threading.Barrier(4)
    names = set[str]()

    def handle(batch: Batch) -> None:
        names.add(threading.current_thread().name)
        barrier.wait(5)

    async with pool(handle, is_async=False, concurrency=4) as running:
        queue = running.queue(8)
        await eventually(done(queue), "all are handled")
    assert handled(queue) == {"acked": 8}
    assert names == {f"testing-{number}" for number in range(4)}


async def test_a_batch_is_full_whenever_enough_is_cached(pool: StartPool) -> None:
    """A batch may span several responses. Only the last one is smaller."""
    sizes: list[int] = []

    async def handle(batch: Batch) -> None:
        sizes.append(len(batch))

    async with pool(handle, concurrency=2, consume_message_batch_max_size=10) as running:
        running.service.pause()
        queue = running.queue(7)
        for _ in range(4):
            running.give(queue, 7)
        running.service.resume()
        await eventually(done(queue), "all are handled")
    assert sorted(sizes, reverse=True) == [10, 10, 10, 5]


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_queues_take_turns(pool: StartPool, monkeypatch: pytest.MonkeyPatch, mode: str, concurrency: int) -> None:
    """A queue with much to do does not keep the others waiting."""
    monkeypatch.setattr("rmqd.consumer.handling.batch_worker.TIME_SLICE_SECONDS", -1.0)
    order: list[int] = []

    async def handle(batch: Batch) -> None:
        order.append(batch.message_queue.queue_id)

    async with pool(handle, concurrency=concurrency, consume_mode=mode) as running:
        running.service.pause()
        queues = [running.queue(3, number) for number in range(3)]
        running.service.resume()
        await eventually(lambda: all(done(queue)() for queue in queues), "all are handled")
    assert order == [0, 1, 2] * 3


async def test_a_handler_that_never_awaits_does_not_starve_the_loop(pool: StartPool) -> None:
    """Heartbeats and pulls need the loop."""

    async def handle(batch: Batch) -> None:
        time.sleep(0.002)  # noqa: ASYNC251 - such handlers exist

    async with pool(handle, concurrency=2) as running:
        queue = running.queue(100)
        turns = 0
        while not done(queue)():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 10


async def test_one_slow_batch_delays_no_other(pool: StartPool) -> None:
    """Later messages of its queue are handled meanwhile, and the commit offset stays below the slow batch."""
    gate = Gate()

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 3:
            await gate(batch)

    async with pool(handle, concurrency=2) as running:
        queue = running.queue(100)
        await eventually(lambda: queue.cached_count == 1, "all but one are handled")
        assert queue.commit_offset() == 3
        gate.open.set()
        await eventually(done(queue), "all are handled")
        assert queue.commit_offset() == 100


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
async def test_a_pause_ends_the_current_turn(pool: StartPool, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """However much of its time slice is left."""
    monkeypatch.setattr("rmqd.consumer.handling.batch_worker.TIME_SLICE_SECONDS", 60.0)
    seen: list[int] = []

    async def handle(batch: Batch) -> None:
        seen.append(batch[0].queue_offset)
        if len(seen) == 2:
            running.service.pause()

    async with pool(handle, concurrency=1, consume_mode=mode) as running:
        queue = running.queue(5)
        await eventually(lambda: len(seen) == 2, "it is paused")
        await asyncio.sleep(0.05)
        assert seen == [0, 1]
        running.service.resume()
        await eventually(done(queue), "the rest is handled")


async def test_a_paused_pool_hands_out_nothing(pool: StartPool) -> None:
    """Handlers finish their batches. New messages are handed out after the pause."""
    gate = Gate()
    async with pool(gate, concurrency=1) as running:
        queue = running.queue(10)
        await eventually(lambda: gate.at_once == 1, "a handler has a batch")
        running.service.pause()
        running.service.pause()
        other = running.queue(1, 1)
        gate.open.set()
        await eventually(lambda: queue.in_flight == 0, "the handler has finished")
        await asyncio.sleep(0.05)
        assert len(gate.batches) == 1
        running.service.resume()
        await eventually(lambda: done(queue)() and done(other)(), "all are handled")
    assert len(gate.batches) == 11


async def test_a_call_is_not_retried_in_place_if_its_queue_is_released_meanwhile(pool: StartPool) -> None:
    """Another member has its messages by then."""
    clock, calls = ManualClock(), list[int]()

    async def handle(batch: Batch) -> None:
        calls.append(batch[0].queue_offset)
        if len(calls) == 1:
            raise ConnectionError

    once = FailureOptions(1, 1.0, 1.0, frozenset(), frozenset())
    async with pool(handle, clock=clock, concurrency=1, failures=once) as running:
        queue = running.queue(1)
        await eventually(lambda: calls == [0], "the call has failed")
        queue.start_release()
        queue.drop("rebalance")
        await clock.advance(1.5)
        following = running.queue(1, number=1)
        await eventually(done(following), "the slot is free again")
    assert calls == [0, 0]
