"""`concurrency: auto` finds how many calls at once a service takes well: many services, moments and seeds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from rmqd.consumer.consumer_options import FailureOptions
from rmqd.consumer.handling.auto_concurrency import AutoConcurrency
from rmqd.handler_api.batch import Batch
from tests.clock import ManualClock
from tests.consumer.handling.simulated_service import (
    FOUND_SECONDS,
    MOST,
    POLL_SECONDS,
    SEEDS,
    STEADY,
    VARIED,
    Service,
    is_found,
    is_found_in_most_runs,
    run_to,
)
from tests.consumer.pool import StartPool, done, handled

KNEES = (4, 16, 64)


def cases() -> Iterator[object]:
    for before, after, deviation in product(KNEES, KNEES, (0.05, 0.2)):
        yield pytest.param(before, after, deviation, id=f"{before}-{after}-{deviation}")


@pytest.mark.parametrize(("before", "after", "deviation"), list(cases()))
def test_it_is_as_good_as_the_best_number_half_a_minute_later(before: int, after: int, deviation: float) -> None:
    """From its start on, and again when the knee has moved."""
    assert is_found(before, after, deviation)


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [STEADY, VARIED])
@pytest.mark.parametrize("call_seconds", [0.1, 0.25])
@pytest.mark.parametrize(("before", "after"), [(4, 16), (16, 4), (16, 64), (64, 4)])
def test_nineteen_of_twenty_runs_find_it(before: int, after: int, call_seconds: float, deviation: float) -> None:
    """Whenever the knee moves, and also where few calls, or slow ones, tell of it.

    At a knee of 4, one call too many has every fourth wait for another one, for all of its time where all begin
    together. Where calls take 250 ms there are 16 a second.
    """
    assert is_found_in_most_runs(before, after, call_seconds, deviation)


@pytest.mark.slow
def test_it_finds_a_knee_that_falls_at_any_moment() -> None:
    """Also amid an interval or a trial: what calls took then is of neither knee, and may look like a slower handler."""
    limits = set[int]()
    for moment in range(80):
        service = Service(16, deviation=STEADY, seed=1, call_seconds=0.25)
        auto = AutoConcurrency(MOST, service.clock)
        service.run(40 + moment * POLL_SECONDS, lambda: auto.limit, auto)  # noqa: B023 (it is called in this round)
        service.knee = 4
        service.run(FOUND_SECONDS, lambda: auto.limit, auto)  # noqa: B023
        limits.add(auto.limit)
    assert limits <= {3, 4, 5}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(4, 16), (16, 4)])
def test_calls_that_differ_very_much_are_no_reason_to_make_few(before: int, after: int) -> None:
    """Half of all intervals mislead then, by a tenth and more: it may not believe them."""
    runs = [tuple(run_to(before, after, 0.1, 0.5, seed)) for seed in SEEDS]
    for results in zip(*runs, strict=True):
        assert sum(rate >= 0.6 for rate, _ in results) >= 19, sorted(results)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_service_that_is_slower_or_faster_by_itself_gets_as_many_calls(factor: float) -> None:
    """What a call takes below the knee changes; the knee does not."""
    service = Service(16, deviation=0.1, seed=3)
    auto = AutoConcurrency(MOST, service.clock)
    service.run(60, lambda: auto.limit, auto)
    service.call_seconds *= factor
    service.run(60, lambda: auto.limit, auto)
    before = len(service.calls)
    service.run(60, lambda: auto.limit, auto)
    assert len(service.calls) - before >= 0.9 * 60 * 16 / service.call_seconds
    assert 12 <= auto.limit <= 20


def test_a_service_that_is_slower_by_itself_gets_as_many_calls() -> None:
    """What a call takes below the knee changes; the knee does not."""
    service = Service(16, deviation=0.1, seed=3)
    auto = AutoConcurrency(MOST, service.clock)
    service.run(60, lambda: auto.limit, auto)
    service.call_seconds *= 4.0
    service.run(60, lambda: auto.limit, auto)
    before = len(service.calls)
    service.run(60, lambda: auto.limit, auto)
    assert len(service.calls) - before >= 0.9 * 60 * 16 / service.call_seconds
    assert 12 <= auto.limit <= 20


def test_where_messages_are_few_nothing_is_learnt() -> None:
    """Calls are soon over then, however many would be made at once."""
    clock = ManualClock()
    auto = AutoConcurrency(MOST, clock)
    for _ in range(2000):
        began = clock.now
        auto.begin()
        clock.now += 0.01
        auto.record_success(began)
        auto.end()
        clock.now += 0.04
        auto.poll()
    assert auto.limit == 1


async def test_a_slot_is_busy_while_it_pauses_before_a_repetition(pool: StartPool) -> None:
    """As while it waits for a store: most of its time is none of the handler's here."""
    clock, tried = ManualClock(), set[int]()

    async def handle(batch: Batch) -> None:
        await clock.sleep(0.01)
        if batch[0].queue_offset not in tried:
            tried.add(batch[0].queue_offset)
            raise ConnectionError

    options = {
        "concurrency": 40,
        "auto_concurrency": True,
        "failures": FailureOptions(1, 0.1, 0.1, frozenset(), frozenset()),
    }
    async with pool(handle, clock=clock, **options) as running:
        queue = running.queue(300)
        await clock.until(lambda: running.service.concurrency > 1, "more calls are made at once", most=60.0)
        await clock.until(done(queue), "all are handled")
    assert handled(queue) == {"acked": 300}
