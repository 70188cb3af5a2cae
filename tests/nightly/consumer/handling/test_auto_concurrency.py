"""`concurrency: auto` finds the best number of simultaneous calls for many services, moments and seeds."""

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
def test_auto_concurrency_reaches_the_best_number_within_half_a_minute(
    before: int, after: int, deviation: float
) -> None:
    """After its start, and again after the knee has moved."""
    assert is_found(before, after, deviation)


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [STEADY, VARIED])
@pytest.mark.parametrize("call_seconds", [0.1, 0.25])
@pytest.mark.parametrize(("before", "after"), [(4, 16), (16, 4), (16, 64), (64, 4)])
def test_nineteen_of_twenty_runs_find_the_knee(before: int, after: int, call_seconds: float, deviation: float) -> None:
    """The knee moves at random moments. Few or slow calls are enough to find it.

    At a knee of 4, one call too many makes every fourth call wait for another one, for its whole duration if all
    start together. With calls of 250 ms there are 16 per second.
    """
    assert is_found_in_most_runs(before, after, call_seconds, deviation)


@pytest.mark.slow
def test_a_knee_that_falls_at_any_moment_is_found() -> None:
    """Even during an interval or a trial. Durations then belong to neither knee, and may look like a slower handler."""
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
def test_widely_varying_durations_do_not_reduce_the_limit(before: int, after: int) -> None:
    """Half of all intervals then mislead by a tenth or more."""
    runs = [tuple(run_to(before, after, 0.1, 0.5, seed)) for seed in SEEDS]
    for results in zip(*runs, strict=True):
        assert sum(rate >= 0.6 for rate, _ in results) >= 19, sorted(results)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_slower_or_faster_service_gets_as_many_calls(factor: float) -> None:
    """The duration of calls below the knee changes; the knee does not."""
    service = Service(16, deviation=0.1, seed=3)
    auto = AutoConcurrency(MOST, service.clock)
    service.run(60, lambda: auto.limit, auto)
    service.call_seconds *= factor
    service.run(60, lambda: auto.limit, auto)
    before = len(service.calls)
    service.run(60, lambda: auto.limit, auto)
    assert len(service.calls) - before >= 0.9 * 60 * 16 / service.call_seconds
    assert 12 <= auto.limit <= 20


def test_few_messages_do_not_raise_the_limit() -> None:
    """Calls then end quickly, whatever the limit is."""
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


async def test_a_slot_counts_as_busy_during_the_pause_before_a_retry(pool: StartPool) -> None:
    """The same holds while it waits for a store. Most of its time here is not the handler's."""
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
