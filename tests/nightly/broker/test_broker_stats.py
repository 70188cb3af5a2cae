"""Counters over the last minute, hour and day, on a test clock."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.broker.broker_stats import DAY, HOUR, MINUTE, BrokerStatsManager, StatsItem
from rmqd.broker.store.message_store import StoredArrival
from rmqd.runtime.clock import SystemClock
from rmqd.wire.bodies.stats_bodies import BrokerStatsItem
from tests.clock import ManualClock


class Now:
    """A time that the test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class SetBack(ManualClock):
    """A clock whose wall time the test sets back."""

    back_seconds = 0.0

    def wall(self) -> float:
        return super().wall() - self.back_seconds


@pytest.fixture
def now() -> Now:
    return Now()


def test_the_rate_of_a_new_counter_is_over_ten_seconds(now: Now) -> None:
    item = StatsItem(now())
    item.add(now(), 2, 200)
    for span in (MINUTE, DAY):
        assert item.nums(now(), span) == BrokerStatsItem(2, 0.2, 1.0)
        assert item.size(now(), span) == BrokerStatsItem(200, 20.0, 100.0)


def test_an_empty_counter_has_zero_rates(now: Now) -> None:
    item = StatsItem(now())
    assert item.nums(now(), MINUTE) == item.size(now(), MINUTE) == BrokerStatsItem(0, 0.0, 0.0)


def test_old_counts_leave_the_minute_the_hour_and_the_day_in_turn(now: Now) -> None:
    """A sample is taken only when something is counted, but counts between samples are not lost."""
    item = StatsItem(now())

    def totals() -> list[int]:
        return [item.nums(now(), span).sum for span in (MINUTE, HOUR, DAY)]

    item.add(now(), 1, 0)
    now.seconds += MINUTE + 10
    item.add(now(), 10, 0)
    assert totals() == [10, 11, 11]

    now.seconds += HOUR + 10
    item.add(now(), 100, 0)
    assert totals() == [100, 100, 111]

    now.seconds += DAY + 600
    item.add(now(), 1000, 0)
    assert totals() == [1000, 1000, 1000]


def test_the_rate_of_a_steady_stream(now: Now) -> None:
    item = StatsItem(now())
    for _ in range(600):
        now.seconds += 1.0
        item.add(now(), 5, 0)
    assert item.nums(now(), MINUTE).tps == pytest.approx(5.0, rel=0.2)
    assert item.nums(now(), HOUR).tps == pytest.approx(5.0, rel=0.02)


def test_the_rate_is_zero_after_five_minutes_without_counts(now: Now) -> None:
    item = StatsItem(now())
    item.add(now(), 5, 5)
    now.seconds += 5 * MINUTE
    assert item.nums(now(), MINUTE) == item.size(now(), MINUTE) == BrokerStatsItem(0, 0.0, 0.0)


def test_counters_have_rocketmqs_names(now: Now) -> None:
    stats = BrokerStatsManager(now, SystemClock(), "DefaultCluster")
    stats.count_stored(StoredArrival("T", 0, 0, 0, b"record"))
    stats.count_pulled("g", "T", 2, 12)
    expected = {("TOPIC_PUT", "T"): (1, 6), ("GROUP_GET", "T@g"): (2, 12)}
    expected |= {("BROKER_PUT", "DefaultCluster"): (1, 6), ("BROKER_GET", "DefaultCluster"): (2, 12)}
    for (name, key), totals in expected.items():
        gained = [stats.find_counter(f"{name}{kind}", key) for kind in ("_NUMS", "_SIZE")]
        assert tuple(one(MINUTE).sum for one in gained if one is not None) == totals
    for name, key in (("TOPIC_PUT_NUMS", "U"), ("TOPIC_PUT", "T"), ("NOPE_NUMS", "T")):
        assert stats.find_counter(name, key) is None


def test_the_totals_at_the_last_two_midnights(now: Now) -> None:
    stats = BrokerStatsManager(now, SystemClock(), "DefaultCluster")
    stats.count_stored(StoredArrival("T", 0, 0, 0, b"record"))
    stats.begin_day()
    stats.count_stored(StoredArrival("T", 0, 1, 0, b"record"))
    stats.count_pulled("g", "T", 2, 12)
    assert (stats.puts_at_midnights, stats.gets_at_midnights) == ((0, 1), (0, 0))
    stats.begin_day()
    assert (stats.puts_at_midnights, stats.gets_at_midnights) == ((1, 2), (0, 2))


async def test_a_day_begins_once_if_the_clock_was_set_back(now: Now) -> None:
    """A sleep until midnight then ends a minute before midnight."""
    clock = SetBack()
    stats = BrokerStatsManager(now, clock, "DefaultCluster")
    stats.count_stored(StoredArrival("T", 0, 0, 0, b"record"))
    running = asyncio.create_task(stats.run())
    await clock.advance(1)
    clock.back_seconds = 60
    await clock.advance(DAY)
    running.cancel()
    assert stats.puts_at_midnights == (0, 1)


def test_a_deleted_topic_has_no_counters(now: Now) -> None:
    stats = BrokerStatsManager(now, SystemClock(), "DefaultCluster")
    for topic in ("T", "T2"):
        stats.count_stored(StoredArrival(topic, 0, 0, 0, b"record"))
        stats.count_pulled("g", topic, 1, 6)
    stats.forget_topic("T")
    assert (stats.put_per_second("T"), stats.get_per_second("g", "T")) == (0.0, 0.0)
    assert (stats.put_per_second("T2"), stats.get_per_second("g", "T2")) == (0.1, 0.1)
