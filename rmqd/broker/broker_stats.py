"""Counters of messages in and out of the broker, over the last minute, hour and day (`BrokerStatsManager.java`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from rmqd.broker.store.message_store import StoredArrival
from rmqd.runtime.clock import Clock
from rmqd.wire.bodies.stats_bodies import BrokerStatsItem

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
_SAMPLE_SECONDS: Final = 10.0
_COARSE_SECONDS: Final = 600.0
_NUMS, _SIZE = "_NUMS", "_SIZE"


class _Sample(NamedTuple):
    """The totals of a StatsItem at one moment. `at` is the event loop's time in seconds."""

    at: float
    messages: int
    size_bytes: int


class StatsItem:
    """A counter of messages and of their bytes, with samples of both totals from the last day."""

    __slots__ = ("_coarse", "_fine", "_next", "messages", "size_bytes")

    def __init__(self, now: float) -> None:
        self.messages = self.size_bytes = 0
        start = _Sample(now, 0, 0)
        self._fine = deque([start], maxlen=int(HOUR / _SAMPLE_SECONDS) + 1)
        self._coarse = deque([start], maxlen=int(DAY / _COARSE_SECONDS) + 1)
        self._next = now + _SAMPLE_SECONDS

    def add(self, now: float, messages: int, size_bytes: int) -> None:
        if now >= self._next:
            sample = _Sample(now, self.messages, self.size_bytes)
            self._fine.append(sample)
            if now >= self._coarse[-1].at + _COARSE_SECONDS:
                self._coarse.append(sample)
            self._next = now + _SAMPLE_SECONDS
        self.messages += messages
        self.size_bytes += size_bytes

    def nums(self, now: float, seconds: float) -> BrokerStatsItem:
        """Return number and rate of messages in the last `seconds` (at most a day), exact to a sampling interval."""
        gained, span = self._gained(now, seconds)
        return BrokerStatsItem(gained.messages, gained.messages / span, 1.0 if gained.messages else 0.0)

    def size(self, now: float, seconds: float) -> BrokerStatsItem:
        """Return the bytes in the last `seconds` (at most a day), their rate, and the average size of a message."""
        gained, span = self._gained(now, seconds)
        each = gained.size_bytes / gained.messages if gained.messages else 0.0
        return BrokerStatsItem(gained.size_bytes, gained.size_bytes / span, each)

    def _gained(self, now: float, seconds: float) -> tuple[_Sample, float]:
        """Return the messages and bytes of the last `seconds`, and the time that they cover (>= _SAMPLE_SECONDS)."""
        samples, distance = (self._fine, _SAMPLE_SECONDS) if seconds <= HOUR else (self._coarse, _COARSE_SECONDS)
        base = samples[0]
        later = _Sample(now, self.messages, self.size_bytes)
        for sample in reversed(samples):
            if sample.at <= now - seconds:
                # `add` samples lazily: messages between `sample` and `later` came within `distance` s after `sample`
                base = later if sample.at + distance <= now - seconds else sample
                break
            later = sample
        gained = _Sample(now, self.messages - base.messages, self.size_bytes - base.size_bytes)
        return gained, max(_SAMPLE_SECONDS, min(seconds, now - samples[0].at))


class BrokerStatsManager:
    """The counters of a broker, its topics and its groups. `now` returns loop time. A day begins at local midnight."""

    def __init__(self, now: Callable[[], float], clock: Clock, cluster: str) -> None:
        self.now = now
        self._clock = clock
        self.puts = StatsItem(now())
        self.gets = StatsItem(now())
        self.get_misses = StatsItem(now())
        """Counts pulls without messages."""
        self.puts_at_midnights = self.gets_at_midnights = (0, 0)
        """The totals of `puts` and of `gets` at the last two midnights, the earlier midnight first."""
        self._topics: dict[str, StatsItem] = {}
        self._groups: dict[str, StatsItem] = {}
        # outer keys: RocketMQ's counter names without _NUMS or _SIZE; inner keys: topics, "topic@group" or the cluster
        self._tables: Final = {
            "TOPIC_PUT": self._topics,
            "GROUP_GET": self._groups,
            "BROKER_PUT": {cluster: self.puts},
            "BROKER_GET": {cluster: self.gets},
        }

    def count_stored(self, arrival: StoredArrival) -> None:
        """Called when a message is stored. Counts the message."""
        now, size = self.now(), len(arrival.record)
        self.puts.add(now, 1, size)
        item = self._topics.get(arrival.topic)
        if item is None:
            item = self._topics[arrival.topic] = StatsItem(now)
        item.add(now, 1, size)

    def count_pulled(self, group: str, topic: str, count: int, size_bytes: int) -> None:
        """Count the messages in the response to a pull, pop or peek. A response without messages is a miss."""
        now = self.now()
        if not count:
            self.get_misses.add(now, 1, 0)
            return
        self.gets.add(now, count, size_bytes)
        key = _group_key(group, topic)
        item = self._groups.get(key)
        if item is None:
            item = self._groups[key] = StatsItem(now)
        item.add(now, count, size_bytes)

    def put_per_second(self, topic: str) -> float:
        """Return how many messages per second were stored in a topic over the last minute."""
        return self._per_second(self._topics.get(topic))

    def get_per_second(self, group: str, topic: str) -> float:
        """Return how many messages per second a group received from a topic over the last minute."""
        return self._per_second(self._groups.get(_group_key(group, topic)))

    def find_counter(self, name: str, key: str) -> Callable[[float], BrokerStatsItem] | None:
        """Return a function that returns a counter, such as TOPIC_PUT_NUMS, for the last N seconds; None if unknown."""
        item = self._tables.get(name.removesuffix(_NUMS).removesuffix(_SIZE), {}).get(key)
        if item is None or not name.endswith((_NUMS, _SIZE)):
            return None
        gained = item.nums if name.endswith(_NUMS) else item.size
        return lambda seconds: gained(self.now(), seconds)

    def forget_topic(self, topic: str) -> None:
        self._topics.pop(topic, None)
        for key in [key for key in self._groups if key.startswith(_group_key("", topic))]:
            del self._groups[key]

    async def run(self) -> None:
        """Call `begin_day` at each local midnight, until cancelled."""
        day = self._local_time().date()
        while True:
            now = self._local_time()
            if now.date() > day:  # else the clock was set back, or the sleep ended a little early
                day = now.date()
                self.begin_day()
            elif now.date() < day - timedelta(days=1):
                day = now.date()
            midnight = datetime.combine(now.date() + timedelta(days=1), datetime.min.time()).astimezone()
            await self._clock.sleep((midnight - now).total_seconds())

    def _local_time(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall()).astimezone()

    def begin_day(self) -> None:
        """Record the totals at midnight, and keep the totals of the previous midnight for yesterday's figures."""
        self.puts_at_midnights = self.puts_at_midnights[1], self.puts.messages
        self.gets_at_midnights = self.gets_at_midnights[1], self.gets.messages

    def _per_second(self, item: StatsItem | None) -> float:
        return 0.0 if item is None else item.nums(self.now(), MINUTE).tps


def _group_key(group: str, topic: str) -> str:
    return f"{topic}@{group}"
