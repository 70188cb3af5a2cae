"""`concurrency: auto` finds how many calls at once a service takes well, and follows it."""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import pytest

from rmqd.consumer.handling.auto_concurrency import AutoConcurrency
from rmqd.consumer.handling.slots import HandlerHungError
from rmqd.consumer.options import FailureOptions
from rmqd.handler_api import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.clock import ManualClock
from tests.consumer.groups import TOPIC
from tests.consumer.pool import TIMEOUT_SECONDS, StartPool, done, handled
from tests.consumer.scripted_broker import BROKER
from tests.waiting import eventually

MOST = 256
CALL_SECONDS = 0.05
STEADY, VARIED = 0.01, 0.2  # how much calls differ among each other
SEEDS = range(20)
LOOK_SECONDS = 0.25
FOUND_SECONDS = 30.0
KNEES = (4, 16, 64)


@dataclass(slots=True)
class Call:
    ended: float
    seconds: float


class Service:
    """What a handler calls, in simulated time. It serves `knee` calls at once, and the others wait for their turn.

    There are always messages: as many calls are under way as the limit says.
    """

    def __init__(self, knee: int, *, deviation: float, seed: int, call_seconds: float = CALL_SECONDS) -> None:
        self.clock = ManualClock()
        self.knee = knee
        self.call_seconds = call_seconds
        self.calls: list[Call] = []
        self._deviation = deviation
        self._draw = random.Random(seed)
        self._look_at = self.clock.now + LOOK_SECONDS
        self._waiting: deque[float] = deque()
        self._served: list[tuple[float, float]] = []  # when it ends, and when it began

    def run(self, seconds: float, limit: Callable[[], int], auto: AutoConcurrency | None = None) -> None:
        clock, end = self.clock, self.clock.now + seconds
        while clock.now < end:
            self._fill(limit(), auto)
            if self._served[0][0] > self._look_at:
                clock.now, self._look_at = self._look_at, self._look_at + LOOK_SECONDS
                if auto is not None:
                    auto.look()
                continue
            clock.now, began = heapq.heappop(self._served)
            self.calls.append(Call(clock.now, clock.now - began))
            if auto is not None:
                auto.took(began)
                auto.end()

    def results(self, last_seconds: float) -> tuple[float, float]:
        """Calls per second, and the 99th percentile of how long they took."""
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
    """What the best fixed setting makes of the service: its knee."""
    service = Service(knee, deviation=deviation, seed=1, call_seconds=call_seconds)
    service.run(20.0 + 400 * call_seconds, lambda: knee)
    return service.results(15.0 + 400 * call_seconds)


def ratios(service: Service, deviation: float, seconds: float) -> tuple[float, float]:
    """Throughput and p99, by those of the best fixed setting."""
    rate, p99 = service.results(seconds)
    best_rate, best_p99 = best_of(service.knee, deviation, service.call_seconds)
    return rate / best_rate, p99 / best_p99


def is_good(rate: float, p99: float) -> bool:
    """Within 10 % of the best fixed setting's throughput, with a p99 of at most 1.5 times its own."""
    return rate >= 0.9 and p99 <= 1.5


def cases() -> Iterator[object]:
    """The first is for `make unit`."""
    for number, (before, after, deviation) in enumerate(product(KNEES, KNEES, (0.05, 0.2))):
        marks = [pytest.mark.slow] if number else []
        yield pytest.param(before, after, deviation, marks=marks, id=f"{before}-{after}-{deviation}")


@pytest.mark.parametrize(("before", "after", "deviation"), list(cases()))
def test_it_is_as_good_as_the_best_number_half_a_minute_later(before: int, after: int, deviation: float) -> None:
    """From its start on, and again when the knee has moved."""
    service = Service(before, deviation=deviation, seed=before * after)
    auto = AutoConcurrency(MOST, service.clock)
    service.run(FOUND_SECONDS + 30, lambda: auto.limit, auto)
    assert is_good(*ratios(service, deviation, 30.0))
    service.knee = after
    service.run(FOUND_SECONDS + 60, lambda: auto.limit, auto)
    assert is_good(*ratios(service, deviation, 60.0))


def run_to(before: int, after: int, call_seconds: float, deviation: float, seed: int) -> Iterator[tuple[float, float]]:
    """The ratios of ten seconds, or 400 calls, from half a minute after the start on, and after the knee has moved."""
    draw = random.Random(seed)
    service = Service(before, deviation=deviation, seed=seed, call_seconds=call_seconds)
    auto = AutoConcurrency(MOST, service.clock)
    for service.knee in (before, after):
        service.run(FOUND_SECONDS + draw.uniform(0, 10), lambda: auto.limit, auto)
        seconds = max(10.0, 400 * call_seconds / service.knee)
        service.run(seconds, lambda: auto.limit, auto)
        yield ratios(service, deviation, seconds)
        service.run(draw.uniform(0, 15), lambda: auto.limit, auto)


@pytest.mark.slow
@pytest.mark.parametrize("deviation", [STEADY, VARIED])
@pytest.mark.parametrize("call_seconds", [0.1, 0.25])
@pytest.mark.parametrize(("before", "after"), [(4, 16), (16, 4), (16, 64), (64, 4)])
def test_nineteen_of_twenty_runs_find_it(before: int, after: int, call_seconds: float, deviation: float) -> None:
    """Whenever the knee moves, and also where few calls, or slow ones, tell of it.

    At a knee of 4, one call too many has every fourth wait for another one, for all of its time where all begin
    together. Where calls take 250 ms there are 16 a second.
    """
    runs = [tuple(run_to(before, after, call_seconds, deviation, seed)) for seed in SEEDS]
    for results in zip(*runs, strict=True):
        assert sum(is_good(*found) for found in results) >= 19, sorted(results)


@pytest.mark.slow
def test_it_finds_a_knee_that_falls_at_any_moment() -> None:
    """Also amid an interval or a trial: what calls took then is of neither knee, and may look like a slower handler."""
    limits = set[int]()
    for moment in range(80):
        service = Service(16, deviation=STEADY, seed=1, call_seconds=0.25)
        auto = AutoConcurrency(MOST, service.clock)
        service.run(40 + moment * LOOK_SECONDS, lambda: auto.limit, auto)  # noqa: B023 (it is called in this round)
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


def test_where_messages_are_few_nothing_is_learnt() -> None:
    """Calls are soon over then, however many would be made at once."""
    clock = ManualClock()
    auto = AutoConcurrency(MOST, clock)
    for _ in range(2000):
        began = clock.now
        auto.begin()
        clock.now += 0.01
        auto.took(began)
        auto.end()
        clock.now += 0.04
        auto.look()
    assert auto.limit == 1


@pytest.mark.parametrize("is_expired", [False, True])
async def test_calls_that_fail_raise_no_limit(is_expired: bool) -> None:
    """Neither soon, nor by not ending at their deadline."""
    clock = ManualClock()
    auto = AutoConcurrency(MOST, clock)

    async def fail(batch: Batch) -> None:
        clock.now += 0.01
        raise ConnectionError

    call = auto.around_batch(auto.around(fail, lambda: is_expired))
    for _ in range(2000):
        with pytest.raises(ConnectionError):
            await call(Batch([], MessageQueue(TOPIC, BROKER, 0)))
        auto.look()
    assert auto.limit == 1


def test_calls_that_run_into_their_deadline_lower_the_limit() -> None:
    service = Service(64, deviation=0.1, seed=1)
    auto = AutoConcurrency(MOST, service.clock)
    service.run(FOUND_SECONDS, lambda: auto.limit, auto)
    before = auto.limit
    assert before > 1
    for _ in range(2):  # the interval that is under way has calls that succeeded
        service.clock.now += 1.0
        began = service.clock.now
        service.clock.now += TIMEOUT_SECONDS
        for _ in range(4 * before):
            auto.ran_out(began)
        auto.look()
    assert auto.limit == before // 4


async def test_a_handler_that_hangs_everywhere_ends_its_group_whatever_the_limit_may_become(pool: StartPool) -> None:
    clock, let_go, calls = ManualClock(), threading.Event(), 0

    def hang(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        let_go.wait(20)

    async with pool(hang, is_async=False, clock=clock, concurrency=64, auto_concurrency=True) as running:
        running.queue(30)
        await eventually(lambda: calls == 1, "the one call that may run hangs")
        await clock.until(running.task.done, "the group ends", most=TIMEOUT_SECONDS + 5)
        assert isinstance(running.task.exception(), HandlerHungError)
        let_go.set()
    assert calls == 1


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


async def test_a_group_makes_so_many_calls_and_no_more(pool: StartPool) -> None:
    """As many as its service takes well, of the most that it may make; and all messages are handled."""
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
