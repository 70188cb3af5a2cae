"""The counters of a group, added up over its topics."""

from __future__ import annotations

from dataclasses import dataclass

from rmqd.consumer.stats.snapshot import GroupSnapshot
from rmqd.histogram import HistogramSnapshot


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Messages since the daemon's start; `failed` are calls of the handler that raised or ran into their deadline."""

    received: int
    acked: int
    retried: int
    expired: int
    dead_lettered: int
    corrupt: int
    failed: int
    duration: HistogramSnapshot | None
    """Seconds of the handler's calls; None for a group without topics."""

    @property
    def handled(self) -> int:
        """Attempts, whatever came of them."""
        return self.acked + self.retried + self.expired + self.dead_lettered


def totals_of(group: GroupSnapshot) -> GroupTotals:
    """Add up the counters of all topics, retries included."""
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
    """The lag of all queues that know theirs; None where no queue does."""
    lags = [queue.lag for queue in group.queues if queue.lag is not None]
    return sum(lags) if lags else None


def longest_lag_seconds(group: GroupSnapshot) -> float | None:
    """The age of the oldest message that waits in any queue; None where no queue knows its own."""
    return max((queue.lag_seconds for queue in group.queues if queue.lag_seconds is not None), default=None)
