"""Rates in the running info: the last minute, failures of the last hour, and queues without progress."""

from __future__ import annotations

import pytest

from rmqd.consumer.admin.running_info_report import SAMPLE_SECONDS, ConsumeRates
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.stats.counters import TopicStats
from tests.clock import ManualClock
from tests.consumer.blocks import QUEUE, block_of

TOPIC = QUEUE.topic


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stats() -> TopicStats:
    return TopicStats(TOPIC, is_retry=False)


@pytest.fixture
def rates(stats: TopicStats, clock: ManualClock) -> ConsumeRates:
    return ConsumeRates({TOPIC: stats}, clock)


def handle(stats: TopicStats, start: int, messages: int, seconds: float = 0.02) -> None:
    """A pull of 5 ms, and a call for each message."""
    block = block_of(range(start, start + messages))
    stats.count_pulled(block)
    stats.count_pull(0.005)
    for message in block.messages:
        stats.acknowledged([message], seconds, 1.0)


def pass_time(rates: ConsumeRates, clock: ManualClock, seconds: float) -> None:
    for _ in range(int(seconds / SAMPLE_SECONDS)):
        clock.turn(SAMPLE_SECONDS)
        rates.sample()


def test_rates_cover_the_last_minute(stats: TopicStats, rates: ConsumeRates, clock: ManualClock) -> None:
    for second in range(120):
        handle(stats, second * 10, 10 if second < 60 else 2)
        if second % SAMPLE_SECONDS == SAMPLE_SECONDS - 1:
            pass_time(rates, clock, SAMPLE_SECONDS)
    found = rates.status(TOPIC)
    assert found.pull_tps == pytest.approx(2, rel=0.1)
    assert found.consume_ok_tps == pytest.approx(2, rel=0.1)
    assert found.consume_rt == pytest.approx(20)
    assert found.pull_rt == pytest.approx(5)
    assert found.consume_failed_tps == found.consume_failed_msgs == 0


@pytest.mark.parametrize("is_sampled", [True, False])
def test_a_topic_added_later_has_rates(stats: TopicStats, clock: ManualClock, *, is_sampled: bool) -> None:
    """A group that is switched from pop to pull starts to read its pop retry topics."""
    by_topic = {TOPIC: stats}
    rates = ConsumeRates(by_topic, clock)
    by_topic["later"] = later = TopicStats("later", is_retry=True)
    if is_sampled:
        pass_time(rates, clock, SAMPLE_SECONDS)
    assert rates.status("later").pull_tps == 0
    handle(later, 0, 100)
    pass_time(rates, clock, SAMPLE_SECONDS)
    assert rates.status("later").pull_tps == pytest.approx(10)


def test_rates_count_from_the_start_during_the_first_minute(
    stats: TopicStats, rates: ConsumeRates, clock: ManualClock
) -> None:
    handle(stats, 0, 50)
    clock.turn(5)
    assert rates.status(TOPIC).consume_ok_tps == pytest.approx(10)


def test_failures_cover_the_last_hour(stats: TopicStats, rates: ConsumeRates, clock: ManualClock) -> None:
    """Retries, dead letters and expired calls are failures. A corrupt message reached no handler."""
    for result in ("retried", "dead_lettered", "expired", "corrupt"):
        stats.count(result)
    pass_time(rates, clock, 1800)
    assert rates.status(TOPIC).consume_failed_msgs == 3
    assert rates.status(TOPIC).consume_failed_tps == 0
    pass_time(rates, clock, 1860)
    assert rates.status(TOPIC).consume_failed_msgs == 0


def test_without_calls_for_a_minute_the_duration_of_the_hour_is_shown(
    stats: TopicStats, rates: ConsumeRates, clock: ManualClock
) -> None:
    """As in Java, because it says more than 0."""
    handle(stats, 0, 10, seconds=0.5)
    pass_time(rates, clock, 120)
    assert rates.status(TOPIC).consume_rt == pytest.approx(500)
    assert rates.status(TOPIC).consume_ok_tps == 0


def test_a_queue_makes_progress_if_messages_finish_or_none_are_cached(
    stats: TopicStats, rates: ConsumeRates, clock: ManualClock
) -> None:
    queue = ProcessQueue(QUEUE, 0, stats)
    rates.record_progress({QUEUE: queue})
    clock.turn(100)
    queue.put(block_of(range(3)), 3)
    rates.record_progress({QUEUE: queue})
    begun = clock.monotonic()
    assert rates.last_progress_at(QUEUE) == begun
    clock.turn(100)
    rates.record_progress({QUEUE: queue})
    assert rates.last_progress_at(QUEUE) == begun, "nothing was finished"
    queue.finish(queue.take(1))
    rates.record_progress({QUEUE: queue})
    assert rates.last_progress_at(QUEUE) == begun + 100
