"""The speed of a group: rates of its topics and the last progress of its queues, from sampled counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from rmqd.clock import Clock
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.stats.counters import TopicStats
from rmqd.wire.bodies.running_info import ConsumeStatus
from rmqd.wire.message_queue import MessageQueue

SAMPLE_SECONDS: Final = 10.0  # Java: StatsItem samples every 10 s for the minute
MINUTE_SAMPLES: Final = 6
HOUR_SAMPLES: Final = 60


class Counters(NamedTuple):
    """A topic's counters at one moment."""

    at: float
    pulls: int
    pull_seconds: float
    received: int
    calls: int
    call_seconds: float
    acked: int
    failed: int


class QueueProgress(NamedTuple):
    """A queue at one moment; `at` is the time of its last progress, or when it was last idle."""

    process_queue: ProcessQueue
    finished: int
    idle: bool
    at: float


class Rates:
    """Rates over the last minute and hour, or since the start if that is later.

    `stats` may gain topics: a group that changes from pop to pull reads its pop retry topics.
    """

    def __init__(self, stats: Mapping[str, TopicStats], clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self._minute: dict[str, deque[Counters]] = {}
        self._hour: dict[str, deque[Counters]] = {}
        self._progress: dict[MessageQueue, QueueProgress] = {}
        self._rounds = 0
        self._begin()

    def sample(self) -> None:
        """Read the topics' counters. Called every 10 s; the rates of the hour use one sample a minute."""
        self._begin()
        self._rounds += 1
        for topic in self._stats:
            self._minute[topic].append(counters := self._count(topic))
            if self._rounds % MINUTE_SAMPLES == 0:
                self._hour[topic].append(counters)

    def status(self, topic: str) -> ConsumeStatus:
        """Return a topic's current rates."""
        self._begin()
        now, minute, hour = self._count(topic), self._minute[topic][0], self._hour[topic][0]
        seconds = max(now.at - minute.at, 1.0)
        calls = minute if now.calls > minute.calls else hour  # Java: the hour's, if the minute had no calls
        return ConsumeStatus(
            pull_rt=_milliseconds(now.pull_seconds - minute.pull_seconds, now.pulls - minute.pulls),
            pull_tps=(now.received - minute.received) / seconds,
            consume_rt=_milliseconds(now.call_seconds - calls.call_seconds, now.calls - calls.calls),
            consume_ok_tps=(now.acked - minute.acked) / seconds,
            consume_failed_tps=(now.failed - minute.failed) / seconds,
            consume_failed_msgs=now.failed - hour.failed,
        )

    def look_at(self, queues: Mapping[MessageQueue, ProcessQueue]) -> None:
        """Record which queues made progress; forget all other queues."""
        now, before = self._clock.monotonic(), self._progress
        self._progress = {}
        for message_queue, process_queue in queues.items():
            last = before.get(message_queue)
            finished, idle = process_queue.next_offset - process_queue.cached_count, not process_queue.cached_count
            same = last is not None and last.process_queue is process_queue and last.finished == finished
            at = last.at if last is not None and same and not (idle or last.idle) else now
            self._progress[message_queue] = QueueProgress(process_queue, finished, idle, at)

    def moved_at(self, queue: MessageQueue) -> float:
        """Return when the queue last made progress or was idle (monotonic). May be 10 s late."""
        progress = self._progress.get(queue)
        return self._clock.monotonic() if progress is None else progress.at

    def _begin(self) -> None:
        """Add topics that are new."""
        for topic in self._stats.keys() - self._minute.keys():
            first = self._count(topic)
            self._minute[topic] = deque([first], maxlen=MINUTE_SAMPLES)
            self._hour[topic] = deque([first], maxlen=HOUR_SAMPLES)

    def _count(self, topic: str) -> Counters:
        stats = self._stats[topic]
        snapshots = stats.snapshots()
        acked = sum(snapshot.handled["acked"] for snapshot in snapshots)
        return Counters(
            self._clock.monotonic(),
            stats.pulls,
            stats.pull_seconds,
            sum(snapshot.received for snapshot in snapshots),
            sum(snapshot.handler_duration.count for snapshot in snapshots),
            sum(snapshot.handler_duration.sum for snapshot in snapshots),
            acked,
            sum(sum(snapshot.handled.values()) - snapshot.handled["corrupt"] for snapshot in snapshots) - acked,
        )


def _milliseconds(seconds: float, times: int) -> float:
    return seconds * 1000 / times if times > 0 else 0.0
