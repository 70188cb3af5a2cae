"""A service in simulated time. `concurrency: auto` must find its best number of calls."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from rmqd.consumer.handling.auto_concurrency import AutoConcurrency
from tests.clock import ManualClock

MOST = 256
CALL_SECONDS = 0.05
STEADY, VARIED = 0.01, 0.2  # how much the durations of calls vary
POLL_SECONDS = 0.25
FOUND_SECONDS = 30.0
SEEDS = range(20)


@dataclass(slots=True)
class Call:
    ended: float
    seconds: float


class Service:
    """A service that a handler calls, in simulated time. It serves `knee` calls at once, and other calls wait.

    There are always messages, so as many calls run as the limit allows.
    """

    def __init__(self, knee: int, *, deviation: float, seed: int, call_seconds: float = CALL_SECONDS) -> None:
        self.clock = ManualClock()
        self.knee = knee
        self.call_seconds = call_seconds
        self.calls: list[Call] = []
        self._deviation = deviation
        self._draw = random.Random(seed)
        self._look_at = self.clock.now + POLL_SECONDS
        self._waiting: deque[float] = deque()
        self._served: list[tuple[float, float]] = []  # when it ends, and when it began

    def run(self, seconds: float, limit: Callable[[], int], auto: AutoConcurrency | None = None) -> None:
        clock, end = self.clock, self.clock.now + seconds
        while clock.now < end:
            self._fill(limit(), auto)
            if self._served[0][0] > self._look_at:
                clock.now, self._look_at = self._look_at, self._look_at + POLL_SECONDS
                if auto is not None:
                    auto.poll()
                continue
            clock.now, began = heapq.heappop(self._served)
            self.calls.append(Call(clock.now, clock.now - began))
            if auto is not None:
                auto.record_success(began)
                auto.end()

    def results(self, last_seconds: float) -> tuple[float, float]:
        """Return calls per second, and the 99th percentile of their durations."""
        since = self.clock.now - last_seconds
        taken = sorted(call.seconds for call in self.calls if call.ended >= since)
        return len(taken) / last_seconds, taken[int(len(taken) * 0.99)]

    def _fill(self, limit: int, auto: AutoConcurrency | None) -> None:
        while len(self._waiting) + len(self._served) < limit:
            if auto is not None:
                auto.begin()
            self._waiting.append(self.clock.now)
        while self._waiting and len(self._served) < self.knee:
            taken = self.call_seconds * self._draw.lognormvariate(-(self._deviation**2) / 2, self._deviation)
            heapq.heappush(self._served, (self.clock.now + taken, self._waiting.popleft()))


@cache
def best_of(knee: int, deviation: float, call_seconds: float) -> tuple[float, float]:
    """Return the results of the best fixed setting, which is the knee."""
    service = Service(knee, deviation=deviation, seed=1, call_seconds=call_seconds)
    service.run(20.0 + 400 * call_seconds, lambda: knee)
    return service.results(15.0 + 400 * call_seconds)


def ratios(service: Service, deviation: float, seconds: float) -> tuple[float, float]:
    """Return throughput and p99, each divided by the value of the best fixed setting."""
    rate, p99 = service.results(seconds)
    best_rate, best_p99 = best_of(service.knee, deviation, service.call_seconds)
    return rate / best_rate, p99 / best_p99


def is_good(rate: float, p99: float) -> bool:
    """Whether throughput is at least 90 % of the best fixed setting's, and p99 at most 1.5 times its p99."""
    return rate >= 0.9 and p99 <= 1.5


def is_found(before: int, after: int, deviation: float) -> bool:
    """Whether `auto` is good from half a minute after its start, and again from half a minute after the knee moved."""
    service = Service(before, deviation=deviation, seed=before * after)
    auto = AutoConcurrency(MOST, service.clock)
    service.run(FOUND_SECONDS + 30, lambda: auto.limit, auto)
    if not is_good(*ratios(service, deviation, 30.0)):
        return False
    service.knee = after
    service.run(FOUND_SECONDS + 60, lambda: auto.limit, auto)
    return is_good(*ratios(service, deviation, 60.0))


def run_to(before: int, after: int, call_seconds: float, deviation: float, seed: int) -> Iterator[tuple[float, float]]:
    """Yield the ratios of ten seconds, or of 400 calls, half a minute after the start and after the knee moved."""
    draw = random.Random(seed)
    service = Service(before, deviation=deviation, seed=seed, call_seconds=call_seconds)
    auto = AutoConcurrency(MOST, service.clock)
    for service.knee in (before, after):
        service.run(FOUND_SECONDS + draw.uniform(0, 10), lambda: auto.limit, auto)
        seconds = max(10.0, 400 * call_seconds / service.knee)
        service.run(seconds, lambda: auto.limit, auto)
        yield ratios(service, deviation, seconds)
        service.run(draw.uniform(0, 15), lambda: auto.limit, auto)


def is_found_in_most_runs(before: int, after: int, call_seconds: float, deviation: float) -> bool:
    """Whether `auto` is good in nineteen of twenty runs, both after the start and after the knee moved."""
    runs = [tuple(run_to(before, after, call_seconds, deviation, seed)) for seed in SEEDS]
    return all(sum(is_good(*found) for found in results) >= 19 for results in zip(*runs, strict=True))
