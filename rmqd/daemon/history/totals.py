"""The counters of a group, summed over its topics."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.consumer.stats.snapshot import GroupSnapshot
from rmqd.histogram import HistogramSnapshot


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Messages since the daemon's start. `failed` counts the handler's calls that raised or expired."""

    received: int
    acked: int
    retried: int
    expired: int
    dead_lettered: int
    corrupt: int
    failed: int
    duration: HistogramSnapshot | None
    """The handler's calls, in seconds; None for a group without topics."""

    @property
    def handled(self) -> int:
        """Attempts, with any result."""
        return self.acked + self.retried + self.expired + self.dead_lettered


def totals_of(group: GroupSnapshot) -> GroupTotals:
    """Sum the counters of all topics, including retries."""
    duration: HistogramSnapshot | None = None
    for topic in group.topics:
        duration = topic.handler_duration if duration is None else duration.merge(topic.handler_duration)
    counts = {
        result: sum(topic.handled.get(result, 0) for topic in group.topics)
        for result in ("acked", "retried", "expired", "dead_lettered", "corrupt")
    }
    return GroupTotals(
        received=sum(topic.received for topic in group.topics),
        failed=sum(sum(topic.exceptions.values()) for topic in group.topics),
        duration=duration,
        **counts,
    )


def total_lag(group: GroupSnapshot) -> int | None:
    """Return the lag of all queues whose lag is known; None if none is."""
    lags = [queue.lag for queue in group.queues if queue.lag is not None]
    return sum(lags) if lags else None


def longest_lag_seconds(group: GroupSnapshot) -> float | None:
    """Return the age of the oldest waiting message of any queue; None if unknown for all queues."""
    return max((queue.lag_seconds for queue in group.queues if queue.lag_seconds is not None), default=None)
