"""How batches are handed to a handler: how many at once, how full, and in which turn."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.consumer_options import FailureOptions
from rmqd.handler_api.batch import Batch
from tests.client.peer import Reply
from tests.clock import ManualClock
from tests.consumer.groups import group_options
from tests.consumer.pool import Gate, StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


@pytest.mark.parametrize("concurrency", [1, 3, 20])
async def test_as_many_batches_at_once_as_the_concurrency_says(pool: StartPool, concurrency: int) -> None:
    """All slots are taken, also by one queue alone, and never more."""
    gate = Gate()
    async with pool(gate, concurrency=concurrency) as running:
        await eventually(
            lambda: len(running.service.ready_queues.sleepers) == concurrency, "every worker waits for work"
        )
        queue = running.queue(50)
        await eventually(lambda: gate.at_once == concurrency, f"{concurrency} batches are handled at once")
        gate.open.set()
        await eventually(done(queue), "all are handled")
    assert gate.most == concurrency
    assert handled(queue) == {"acked": 50}


@pytest.mark.parametrize("is_auto", [False, True])
async def test_the_concurrency_changes_while_the_group_runs(pool: StartPool, is_auto: bool) -> None:
    """More calls begin at once; fewer as those under way end. `auto` begins with one."""
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
        await eventually(lambda: at_once() == 4, "two more are")
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


async def test_synchronous_handlers_run_in_threads_as_many_at_once(pool: StartPool) -> None:
    """None in the event loop's thread, which goes on meanwhile."""
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
    """Over several replies too; only the rest is smaller."""
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


async def test_queues_take_turns(pool: StartPool) -> None:
    """A queue with much to do does not keep the others waiting."""
    order: list[int] = []

    async def handle(batch: Batch) -> None:
        order.append(batch.message_queue.queue_id)
        await asyncio.sleep(0.006)  # longer than a worker's time slice

    async with pool(handle, concurrency=1) as running:
        busy = running.queue(30, 0)
        others = [running.queue(2, number) for number in (1, 2)]
        await eventually(lambda: all(done(queue)() for queue in others), "the small queues are handled")
        assert not done(busy)()
    assert Counter(order[:6]).most_common() == [(0, 2), (1, 2), (2, 2)] or Counter(order[:7])[0] <= 3


async def test_a_handler_that_never_waits_lets_the_others_through(pool: StartPool) -> None:
    """The loop gets its turn, and so do heartbeats and pulls."""

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
    """Its queue's later messages are handled meanwhile, and nothing above it counts as done."""
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
async def test_a_pause_ends_the_turn_that_is_under_way(
    pool: StartPool, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
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
    """What handlers have they finish; what came meanwhile is handed out after the pause."""
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


async def test_a_pause_takes_effect_at_once(pool: StartPool) -> None:
    """Also for a worker in the midst of a queue's messages."""
    calls = 0

    async def handle(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        if batch[0].queue_offset == 2:
            running.service.pause()

    async with pool(handle, concurrency=1) as running:
        queue = running.queue(10)
        await eventually(lambda: running.service.ready_queues.paused and queue.in_flight == 0, "it is paused")
        await asyncio.sleep(0.02)
        assert calls == 3
        running.service.resume()
        await eventually(done(queue), "all are handled")


async def test_messages_that_no_broker_takes_are_handled_again(
    pool: StartPool, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, here, and until then the offset stays below them."""
    monkeypatch.setattr("rmqd.consumer.handling.settlement.LOCAL_RETRY_SECONDS", 0.1)
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2):
        broker.peer.on(code, Reply(ResponseCode.SYSTEM_ERROR, "disk full"))
    tries = Counter[int]()

    async def handle(batch: Batch) -> None:
        offset = batch[0].queue_offset
        tries[offset] += 1
        if offset == 1 and tries[offset] < 3:
            raise RuntimeError("failed")

    async with pool(handle, concurrency=2) as running:
        queue = running.queue(3)
        await eventually(lambda: queue.retrying == 1, "the message waits for its next try")
        assert queue.commit_offset() == 1
        await eventually(done(queue), "all are handled")
    assert tries == {0: 1, 1: 3, 2: 1}
    assert queue.commit_offset() == 3
    assert handled(queue) == {"acked": 3}


async def test_no_call_is_made_again_for_a_queue_that_was_given_up_in_the_pause(pool: StartPool) -> None:
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
