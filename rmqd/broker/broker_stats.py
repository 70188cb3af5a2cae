"""Counters of what the broker takes and gives, over the last minute, hour and day (`BrokerStatsManager.java`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from rmqd.broker.store.message_store import Arrival
from rmqd.clock import Clock

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
TOPIC_PUT_SIZE: Final = "TOPIC_PUT_SIZE"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"  # its keys, and those of GROUP_GET_SIZE, are topic@group
GROUP_GET_SIZE: Final = "GROUP_GET_SIZE"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"  # its keys, and those of BROKER_GET_NUMS, are clusters
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
_SAMPLE_SECONDS: Final = 10.0
_COARSE_SECONDS: Final = 600.0


class _Sample(NamedTuple):
    """How far a counter was at a time (loop time)."""

    at: float
    total: int
    times: int


class StatsSnapshot(NamedTuple):
    """What a counter gained in a span of time, a second, and each time."""

    total: int = 0
    per_second: float = 0.0
    per_time: float = 0.0


class StatsItem:
    """A counter that remembers how far it was at times during the last day."""

    __slots__ = ("_coarse", "_fine", "_next", "_now", "times", "total")

    def __init__(self, now: Callable[[], float]) -> None:
        self.total = self.times = 0
        self._now = now
        start = _Sample(now(), 0, 0)
        self._fine = deque([start], maxlen=int(HOUR / _SAMPLE_SECONDS) + 1)
        self._coarse = deque([start], maxlen=int(DAY / _COARSE_SECONDS) + 1)
        self._next = start.at + _SAMPLE_SECONDS

    def add(self, amount: int, times: int = 1) -> None:
        """Count."""
        now = self._now()
        if now >= self._next:
            sample = _Sample(now, self.total, self.times)
            self._fine.append(sample)
            if now >= self._coarse[-1].at + _COARSE_SECONDS:
                self._coarse.append(sample)
            self._next = now + _SAMPLE_SECONDS
        self.total += amount
        self.times += times

    def last(self, seconds: float) -> StatsSnapshot:
        """What was counted in the last seconds, at most a day; samples' distance is how exact that is."""
        now = self._now()
        samples, distance = (self._fine, _SAMPLE_SECONDS) if seconds <= HOUR else (self._coarse, _COARSE_SECONDS)
        base = samples[0]
        later = _Sample(now, self.total, self.times)
        for sample in reversed(samples):
            if sample.at <= now - seconds:
                # what was counted after a sample was so within the distance: else there would be another one
                base = later if sample.at + distance <= now - seconds else sample
                break
            later = sample
        total, times = self.total - base.total, self.times - base.times
        # over less than the samples' distance a rate would say nothing
        span = max(_SAMPLE_SECONDS, min(seconds, now - samples[0].at))
        return StatsSnapshot(total, total / span, total / times if times else 0.0)


class BrokerStatsManager:
    """Counters by name and key. `now` is the loop's time; days change by the clock, at this machine's midnight."""

    def __init__(self, now: Callable[[], float], clock: Clock, cluster: str) -> None:
        self._now = now
        self._clock = clock
        self._items: dict[tuple[str, str], StatsItem] = {}
        self.puts = self.item(BROKER_PUT_NUMS, cluster)
        self.gets = self.item(BROKER_GET_NUMS, cluster)
        self.get_misses = StatsItem(now)
        """Pulls that found nothing."""
        self.puts_at_midnights = self.gets_at_midnights = (0, 0)
        """How many messages there were yesterday morning, and this morning."""

    def item(self, name: str, key: str) -> StatsItem:
        """A counter, made where it is not there."""
        known = self._items.get((name, key))
        if known is None:
            known = self._items[name, key] = StatsItem(self._now)
        return known

    def find(self, name: str, key: str) -> StatsItem | None:
        """A counter, where something was counted."""
        return self._items.get((name, key))

    def arrived(self, arrival: Arrival) -> None:
        """A message was stored."""
        self.puts.add(1)
        self.item(TOPIC_PUT_NUMS, arrival.topic).add(1)
        self.item(TOPIC_PUT_SIZE, arrival.topic).add(len(arrival.record))

    def pulled(self, group: str, topic: str, count: int, size_bytes: int) -> None:
        """A pull was answered with so many messages."""
        if not count:
            self.get_misses.add(1)
            return
        key = f"{topic}@{group}"
        self.gets.add(count)
        self.item(GROUP_GET_NUMS, key).add(count)
        self.item(GROUP_GET_SIZE, key).add(size_bytes)

    def put_per_second(self, topic: str) -> float:
        """Messages a second over the last minute."""
        return self._per_second(TOPIC_PUT_NUMS, topic)

    def get_per_second(self, group: str, topic: str) -> float:
        """Messages a second over the last minute."""
        return self._per_second(GROUP_GET_NUMS, f"{topic}@{group}")

    def forget_topic(self, topic: str) -> None:
        """The topic is gone."""
        for name, key in list(self._items):
            if key == topic or key.startswith(f"{topic}@"):
                del self._items[name, key]

    async def run(self) -> None:
        """Take note of each midnight, until cancelled."""
        while True:
            now = datetime.fromtimestamp(self._clock.wall()).astimezone()
            midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time()).astimezone()
            await asyncio.sleep((midnight - now).total_seconds())
            self.begin_day()

    def begin_day(self) -> None:
        """It is midnight."""
        self.puts_at_midnights = self.puts_at_midnights[1], self.puts.total
        self.gets_at_midnights = self.gets_at_midnights[1], self.gets.total

    def _per_second(self, name: str, key: str) -> float:
        item = self.find(name, key)
        return 0.0 if item is None else item.last(MINUTE).per_second
