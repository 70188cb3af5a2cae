"""`concurrency: auto` finds the best number of concurrent calls of a service, and follows its changes."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, cast

import pytest

from rmqd.consumer.handling.auto_concurrency import AutoConcurrency
from rmqd.consumer.handling.batch_worker import Worker
from rmqd.consumer.handling.handler_failures import HandlerHungError
from rmqd.handler_api.batch import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import TOPIC
from tests.consumer.handling.simulated_service import (
    FOUND_SECONDS,
    MOST,
    VARIED,
    Service,
    is_found,
    is_found_in_most_runs,
)
from tests.consumer.pool import TIMEOUT_SECONDS, StartPool, done, handled
from tests.consumer.scripted_broker import BROKER
from tests.waiting import eventually


def test_auto_is_as_good_as_the_best_setting_after_half_a_minute() -> None:
    """After its start, and again after the knee moved. tests/nightly has more services."""
    for before, after, deviation in ((4, 16, 0.05), (16, 4, 0.2), (16, 64, 0.2), (64, 4, 0.05)):
        assert is_found(before, after, deviation), (before, after, deviation)


def test_auto_finds_the_best_setting_in_nineteen_of_twenty_runs() -> None:
    """The knee moves at any time, and calls may be slow. tests/nightly has more services."""
    assert is_found_in_most_runs(16, 4, 0.25, VARIED)


@pytest.mark.parametrize("is_expired", [False, True])
async def test_failing_calls_do_not_raise_the_limit(is_expired: bool) -> None:
    """Neither calls that fail soon nor expired calls do."""
    clock = ManualClock()
    auto = AutoConcurrency(MOST, clock)

    async def fail(batch: Batch) -> None:
        clock.now += 0.01
        raise ConnectionError

    worker = Worker(cast("Any", None), 0)
    worker.expired = is_expired
    for _ in range(2000):
        with pytest.raises(ConnectionError):
            await auto.measure_slot(
                partial(auto.measure, fail, worker), worker, Batch([], MessageQueue(TOPIC, BROKER, 0))
            )
        auto.poll()
    assert auto.limit == 1


def test_calls_that_run_into_their_deadline_lower_the_limit() -> None:
    service = Service(64, deviation=0.1, seed=1)
    auto = AutoConcurrency(MOST, service.clock)
    service.run(FOUND_SECONDS, lambda: auto.limit, auto)
    before = auto.limit
    assert before > 1
    for _ in range(2):  # the current interval has successful calls too
        service.clock.now += 1.0
        began = service.clock.now
        service.clock.now += TIMEOUT_SECONDS
        for _ in range(4 * before):
            auto.record_expiry(began)
        auto.poll()
    assert auto.limit == before // 4


async def test_a_group_ends_if_all_calls_that_auto_admits_hang(pool: StartPool) -> None:
    clock, let_go, calls = ManualClock(), threading.Event(), 0

    def hang(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        let_go.wait(20)

    async with pool(hang, is_async=False, clock=clock, concurrency=64, auto_concurrency=True) as running:
        running.queue(30)
        await eventually(lambda: calls == 1, "the only admitted call hangs")
        await clock.until(running.task.done, "the group ends", most=TIMEOUT_SECONDS + 5)
        assert isinstance(running.task.exception(), HandlerHungError)
        let_go.set()
    assert calls == 1


async def test_a_group_makes_as_many_calls_as_its_service_takes_well(pool: StartPool) -> None:
    """This is fewer than `concurrency` allows, and all messages are handled."""
    clock = ManualClock()
    at_once = most = 0

    async def handle(batch: Batch) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            await clock.sleep(0.05 * max(1.0, at_once / 8))
        finally:
            at_once -= 1

    async with pool(handle, clock=clock, concurrency=40, auto_concurrency=True) as running:
        queue = running.queue(1)
        await clock.until(done(queue), "the first one is handled")
        assert (most, running.service.concurrency) == (1, 1)
        running.give(queue, 3000)
        await clock.until(lambda: most >= 8, "it makes more calls at once", most=20.0)
        await clock.until(done(queue), "all are handled", most=60.0)
        assert 6 <= running.service.concurrency <= 16
        await eventually(lambda: at_once == 0, "no call is left")
    assert most < 40
    assert handled(queue) == {"acked": 3001}
