"""How batches are handed to a handler: how many at once, how full, in which turn, and what a deadline does."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.clock import Clock, SystemClock
from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.concurrently import ConsumeMessageConcurrentlyService, HandlerHungError
from rmqd.consumer.process_queue import ProcessQueue
from rmqd.consumer.send_back import SendBack
from rmqd.consumer.stats import TopicStats
from rmqd.handler import Batch
from rmqd.wire.message import MessageQueue
from tests.client.peer import Reply, eventually
from tests.consumer.blocks import block_of
from tests.consumer.clock import ManualClock
from tests.consumer.groups import GROUP, TOPIC, group_options, handler_of
from tests.consumer.scripted_broker import BROKER, ScriptedBroker

Service = ConsumeMessageConcurrentlyService
TIMEOUT_SECONDS = 60.0
GRACE_SECONDS = 5.5  # and a little: for a cancelled handler to end


class Pool:
    """The workers of a group without its pull loops: messages come from the test."""

    def __init__(self, service: Service, task: asyncio.Task[None]) -> None:
        self.service = service
        self.task = task

    def queue(self, messages: int, number: int = 0) -> ProcessQueue:
        """A queue with messages to hand out."""
        place = MessageQueue(TOPIC, BROKER, number)
        queue = ProcessQueue(place, 0, TopicStats(TOPIC, is_retry=False))
        self.give(queue, messages)
        return queue

    def give(self, queue: ProcessQueue, messages: int) -> None:
        """One more reply for a queue."""
        start = queue.next_offset
        queue.put(block_of(range(start, start + messages), queue.message_queue), start + messages)
        self.service.submit(queue)


@pytest.fixture
def pool(broker: ScriptedBroker) -> Callable[..., contextlib.AbstractAsyncContextManager[Pool]]:
    """`async with pool(function, is_async=…, clock=…, **options)`."""

    @contextlib.asynccontextmanager
    async def start(
        function: Callable[..., Any], *, is_async: bool = True, clock: Clock | None = None, **values: Any
    ) -> AsyncIterator[Pool]:
        broker.create_topic(TOPIC, 4)
        client = ClientInstance(ClientOptions(nameservers=(broker.peer.address,)))
        await client.routes.lookup(TOPIC)
        options = group_options(**{"consume_timeout_seconds": TIMEOUT_SECONDS, **values})
        send_back = SendBack(client, GROUP, options.max_reconsume_times)
        handler = handler_of(function, is_async=is_async)
        service = Service(options, handler, send_back, clock or SystemClock())
        task = asyncio.create_task(service.run())
        try:
            yield Pool(service, task)
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, HandlerHungError):
                await task
            await client.remoting.close()

    return start


StartPool = Callable[..., contextlib.AbstractAsyncContextManager[Pool]]


def handled(queue: ProcessQueue) -> dict[str, int]:
    return {result: count for result, count in queue.stats.snapshot().handled.items() if count}


def done(queue: ProcessQueue) -> Callable[[], bool]:
    return lambda: queue.cached_count == 0 and queue.in_flight == 0


class Gate:
    """A handler that waits until the test lets it go on, and counts how many do so at once."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.at_once = self.most = 0
        self.open = asyncio.Event()

    async def __call__(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.open.wait()
        finally:
            self.at_once -= 1


# --- how many, how full, in which turn


@pytest.mark.parametrize("concurrency", [1, 3, 20])
async def test_as_many_batches_at_once_as_the_concurrency_says(pool: StartPool, concurrency: int) -> None:
    """All slots are taken, also by one queue alone, and never more."""
    gate = Gate()
    async with pool(gate, concurrency=concurrency) as running:
        await eventually(lambda: len(running.service.sleepers) == concurrency, "every worker waits for work")
        queue = running.queue(50)
        await eventually(lambda: gate.at_once == concurrency, f"{concurrency} batches are handled at once")
        gate.open.set()
        await eventually(done(queue), "all are handled")
    assert gate.most == concurrency
    assert handled(queue) == {"acked": 50}


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
        queue = running.queue(500)
        turns = 0
        while not done(queue)():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 50


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
        await eventually(lambda: running.service.paused and queue.in_flight == 0, "it is paused")
        await asyncio.sleep(0.02)
        assert calls == 3
        running.service.resume()
        await eventually(done(queue), "all are handled")


# --- deadlines


async def test_an_async_handler_is_cancelled_at_its_deadline(pool: StartPool, broker: ScriptedBroker) -> None:
    """Its batch is sent back with delay level 3, the slot goes on, and the next call has a deadline of its own."""
    clock, gate = ManualClock(), Gate()
    async with pool(gate, clock=clock, concurrency=1) as running:
        queue = running.queue(2)
        for number in (1, 2):
            await eventually(lambda: gate.at_once == 1, "a handler has a batch")
            clock.advance(TIMEOUT_SECONDS - 1)
            await asyncio.sleep(0.6)
            assert len(broker.sent_back) == number - 1
            clock.advance(1.5)
            await eventually(lambda number=number: len(broker.sent_back) == number, "the batch is sent back")  # type: ignore[misc]
        await eventually(done(queue), "nothing is left")
        assert running.service.abandoned == 0
    assert [header.delay_level for header in broker.sent_back] == [3, 3]
    assert handled(queue) == {"expired": 2}
    assert queue.commit_offset() == 2


@pytest.mark.parametrize("ending", ["returns", "raises"])
async def test_what_a_cancelled_handler_says_is_no_result(pool: StartPool, broker: ScriptedBroker, ending: str) -> None:
    """Whether it returns as if nothing was, or raises another error: the batch is sent back, the slot works on."""
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
            clock.advance(TIMEOUT_SECONDS + 1)
        await eventually(done(queue), "nothing is left")
    assert [header.offset for header in broker.sent_back] == [0, 0]  # commit log offsets, all 0 here
    assert handled(queue) == {"acked": 2, "expired": 2}


async def test_a_cancellation_that_a_handler_lets_out_is_a_failure_of_its_own(
    pool: StartPool, broker: ScriptedBroker
) -> None:
    """Of a task that it awaited, say. The slot stays, and the batch is retried."""

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


async def test_a_handler_that_ignores_its_cancellation_loses_its_slot(pool: StartPool, broker: ScriptedBroker) -> None:
    """Its batch is sent back, another worker takes over, and what it returns in the end is nobody's result."""
    clock, let_go = ManualClock(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        while batch[0].queue_offset == 0 and not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    async with pool(handle, clock=clock, concurrency=2) as running:
        queue = running.queue(1)
        await eventually(lambda: queue.in_flight == 1, "the handler has a batch")
        clock.advance(TIMEOUT_SECONDS)
        await asyncio.sleep(0.6)
        assert not broker.sent_back
        clock.advance(GRACE_SECONDS)
        await eventually(done(queue), "the batch is sent back")
        assert running.service.abandoned == 1
        running.give(queue, 3)
        await eventually(done(queue), "the others are handled")
        let_go.set()
        await eventually(lambda: running.service.abandoned == 0, "the call has ended")
    assert handled(queue) == {"acked": 3, "expired": 1}
    assert len(broker.sent_back) == 1


async def test_a_sync_handler_is_left_to_its_thread(pool: StartPool, broker: ScriptedBroker) -> None:
    """The slot is freed at once, and the later result is ignored, whatever it is."""
    clock, let_go = ManualClock(), threading.Event()

    def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 0:
            let_go.wait(10)
            raise RuntimeError("too late to matter")

    async with pool(handle, is_async=False, clock=clock, concurrency=2) as running:
        queue = running.queue(1)
        await eventually(lambda: queue.in_flight == 1, "the handler has a batch")
        clock.advance(TIMEOUT_SECONDS)
        await eventually(done(queue), "the batch is sent back")
        assert running.service.abandoned == 1
        running.give(queue, 20)
        await eventually(done(queue), "the others are handled")
        let_go.set()
        await eventually(lambda: running.service.abandoned == 0, "the call has ended")
    assert handled(queue) == {"acked": 20, "expired": 1}
    assert len(broker.sent_back) == 1


@pytest.mark.parametrize("is_async", [True, False])
async def test_the_group_fails_when_every_slot_hangs(
    pool: StartPool, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """Rather than doing nothing for ever; what hung is sent back before, also to a slow broker."""
    monkeypatch.setattr("rmqd.consumer.concurrently.CANCEL_GRACE_SECONDS", 1.0)

    async def send_back(_: object) -> Reply:
        await asyncio.sleep(0.7)
        return Reply()

    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, send_back)
    clock, let_go = ManualClock(), threading.Event()

    def hang(batch: Batch) -> None:
        let_go.wait(10)

    async def ignore(batch: Batch) -> None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async with pool(ignore if is_async else hang, is_async=is_async, clock=clock, concurrency=2) as running:
        queue = running.queue(2)
        await eventually(lambda: queue.in_flight == 2, "both slots are taken")
        clock.advance(TIMEOUT_SECONDS + 1)
        if is_async:
            await asyncio.sleep(0.6)
            clock.advance(GRACE_SECONDS)
        try:
            with pytest.raises(HandlerHungError, match="all 2 slots of handler testing"):
                await asyncio.wait_for(running.task, 8)
        finally:
            let_go.set()
    assert handled(queue) == {"expired": 2}, "or it would hang the next start too"


async def test_an_end_waits_for_no_handler_that_ignores_it(pool: StartPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given a little time, and then left behind."""
    monkeypatch.setattr("rmqd.consumer.concurrently.CANCEL_GRACE_SECONDS", 0.2)
    let_go, calls = asyncio.Event(), 0

    async def handle(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    with capture_logs() as logs:
        async with pool(handle, concurrency=1) as running:
            queue = running.queue(5)
            await eventually(lambda: queue.in_flight == 1, "the handler has a batch")
            running.task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running.task, 2)
    let_go.set()
    await asyncio.sleep(0)
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["handler.left_behind"]
    assert calls == 1, "it is given nothing more"


async def test_time_that_a_send_back_takes_is_not_the_next_batchs(pool: StartPool, broker: ScriptedBroker) -> None:
    """A slow broker must not bring the deadline of what is handled after it nearer."""
    clock, gate = ManualClock(), Gate()

    async def send_back(_: object) -> Reply:
        clock.advance(TIMEOUT_SECONDS - 1)
        return Reply()

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 0:
            raise RuntimeError("failed")
        await gate(batch)

    broker.peer.on(RequestCode.CONSUMER_SEND_MSG_BACK, send_back)
    async with pool(handle, clock=clock, concurrency=1) as running:
        queue = running.queue(2)
        await eventually(lambda: gate.at_once == 1, "the second message is handled")
        clock.advance(5)
        await asyncio.sleep(0.6)
        assert gate.at_once == 1, "it was cancelled"
        gate.open.set()
        await eventually(done(queue), "all are handled")
    assert handled(queue) == {"acked": 1, "retried": 1}


async def test_a_handler_that_blocks_the_event_loop_is_named(pool: StartPool) -> None:
    """After a second; one that awaits as long is not."""

    async def handle(batch: Batch) -> None:
        if batch[0].queue_offset == 0:
            await asyncio.sleep(1.1)
        else:
            time.sleep(1.1)  # noqa: ASYNC251 - this is the fault

    with capture_logs() as logs:
        async with pool(handle, concurrency=1) as running:
            queue = running.queue(1)
            await eventually(done(queue), "the patient one is done")
            assert not [entry for entry in logs if entry["event"] == "handler.blocked_loop"]
            running.give(queue, 1)
            await eventually(done(queue), "the blocking one is done")
    [entry] = [entry for entry in logs if entry["event"] == "handler.blocked_loop"]
    assert entry["handler"] == "testing"
    assert entry["seconds"] == pytest.approx(1.1, abs=0.4)


async def test_messages_that_no_broker_takes_are_handled_again(
    pool: StartPool, broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while, here, and until then the offset stays below them."""
    monkeypatch.setattr("rmqd.consumer.settlement.LOCAL_RETRY_SECONDS", 0.1)
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
