"""The history of every group over the last hour: its lag, rates and latency every 5 seconds, and its problems.

A process reports only its current problems. The daemon compares them with the previous problems, to know when each
problem started and ended.
"""

from __future__ import annotations

import asyncio
import math
import re
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any, Final

import structlog

from rmqd.consumer.health.causes import Problem
from rmqd.consumer.stats.counters import RATE_TOTALS, rates_between, totals_of
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot, TopicSnapshot
from rmqd.daemon.groups.group_engine import HostSnapshot, merge_processes
from rmqd.runtime.clock import Clock
from rmqd.runtime.figures import largest_known, sum_of_known
from rmqd.runtime.histogram import HistogramSnapshot


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """The sums over all topics of a group, including retries."""

    counts: Mapping[str, int]
    """The sums by counter name, as `totals_of` returns them."""
    duration: HistogramSnapshot | None
    """The durations of all handler calls, in seconds; None for a group without topics."""

    @classmethod
    def of(cls, group: GroupSnapshot) -> GroupTotals:
        durations = [topic.handler_duration for topic in group.topics]
        return cls(totals_of(group.topics), reduce(HistogramSnapshot.merge, durations) if durations else None)

    def latency_since(self, before: GroupTotals) -> HistogramSnapshot | None:
        """Return the durations of the handler calls since the earlier totals `before`."""
        if before.duration is None or self.duration is None:
            return self.duration
        return self.duration.since(before.duration)


def total_lag(group: GroupSnapshot) -> int | None:
    """Return the total lag of all queues whose lag is known; None if it is unknown for all queues."""
    return sum_of_known(queue.lag for queue in group.queues)


def longest_lag_seconds(group: GroupSnapshot) -> float | None:
    """Return the age of the oldest waiting message of any queue; None if unknown for all queues."""
    return largest_known(queue.lag_seconds for queue in group.queues)


STEP_SECONDS: Final = 5.0
POINTS: Final = 720  # one hour
COLUMNS: Final = ("lag", "lag_seconds", *RATE_TOTALS, "p50", "p99")
_WHOLE: Final = frozenset({"lag"})


class GroupSeries:
    """A ring buffer of a group's last POINTS points. A point has 4 bytes for each column; a full ring takes 26 KB."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("f")

    def put(self, number: int, values: Mapping[str, float | None]) -> None:
        """Store point `number`, in place of point `number - POINTS`. Columns missing in `values` become unknown."""
        at = number % POINTS * len(COLUMNS)
        self._values.extend([math.nan] * (at + len(COLUMNS) - len(self._values)))
        for offset, column in enumerate(COLUMNS):
            value = values.get(column)
            self._values[at + offset] = math.nan if value is None else value

    def column(self, name: str, numbers: range) -> list[float | int | None]:
        """Return the values of a column in the points with these numbers; None for an unknown value."""
        offset, width, is_whole = COLUMNS.index(name), len(COLUMNS), name in _WHOLE
        found = [self._values[number % POINTS * width + offset] for number in numbers]
        return [None if math.isnan(value) else int(value) if is_whole else _short(value) for value in found]


def _short(value: float) -> float | int:
    """Return the value with as many digits as a chart can show."""
    rounded = round(value, 1) if value >= 100 else round(value, 3) if value >= 1 else round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


MAX_ENDED_PROBLEMS: Final = 10
MAX_QUEUES: Final = 20

# A problem's cause, the topic of its stalled queues, and a text that distinguishes problems with the same cause.
_Key = tuple[str, str, str]
# For each of these causes, a group may have several problems, for example one for each topic. For any other cause, a
# group has at most one problem, which each process may report.
_MANIFOLD: Final = frozenset({"topic_missing", "no_route", "no_permission", "broker_unreachable"})
_DIGITS: Final = re.compile(r"\d+(\.\d+)?( (ms|s|min|h|d)\b)?")


@dataclass(slots=True)
class TimedProblem:
    """A problem and the queues that it stalls, or no queues if it concerns the whole group. Times are Unix seconds."""

    problem: Problem
    since: float
    queues: tuple[str, ...] = ()
    until: float | None = None

    def as_document(self) -> dict[str, Any]:
        """Return the problem as JSON. Only the first MAX_QUEUES queues are named."""
        return asdict(self.problem) | {
            "state": "active" if self.until is None else "ended",
            "since": round(self.since, 3),
            "until": None if self.until is None else round(self.until, 3),
            "queues": list(self.queues[:MAX_QUEUES]),
            "queue_count": len(self.queues),
        }


@dataclass(slots=True)
class FindingLog:
    """The findings of one group: all active problems, and the last MAX_ENDED ended problems, with their times."""

    _active: dict[_Key, TimedProblem] = field(default_factory=dict)
    _ended: deque[TimedProblem] = field(default_factory=lambda: deque(maxlen=MAX_ENDED_PROBLEMS))

    def observe(self, group: GroupSnapshot, now: float) -> None:
        """Update the findings from a snapshot of the group at the Unix time `now`."""
        seen = dict(_found(group))
        for key, (problem, queues) in seen.items():
            finding = self._active.setdefault(key, TimedProblem(problem, now))
            finding.problem, finding.queues = problem, queues
        for key in self._active.keys() - seen.keys():
            finding = self._active.pop(key)
            finding.until = now
            self._ended.append(finding)

    def as_documents(self) -> list[dict[str, Any]]:
        """Return all findings as JSON: active findings by start, then ended findings, the latest first."""
        standing = sorted(self._active.values(), key=lambda finding: finding.since)
        return [finding.as_document() for finding in (*standing, *reversed(self._ended))]


def _found(group: GroupSnapshot) -> Iterator[tuple[_Key, tuple[Problem, tuple[str, ...]]]]:
    for problem in group.problems:
        told_by = _DIGITS.sub("", problem.evidence) if problem.cause in _MANIFOLD else ""
        yield (problem.cause, "", told_by), (problem, ())
    stalled: dict[tuple[str, str], tuple[Problem, list[str]]] = {}
    for queue in group.queues:
        if queue.stall is not None:
            topic = f"{queue.topic} (retry)" if queue.is_retry else queue.topic
            _, names = stalled.setdefault((queue.stall.cause, topic), (queue.stall, []))
            names.append(f"{topic}@{queue.broker}:{queue.queue_label}")
    for (cause, topic), (problem, names) in stalled.items():
        yield (cause, topic, ""), (problem, tuple(names))


log = structlog.get_logger(__name__)

RATE_SECONDS: Final = 10.0  # the period of the current rates
LATENCY_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float  # monotonic seconds
    totals: GroupTotals


@dataclass(frozen=True, slots=True)
class RecentActivity:
    seconds: float
    """The period of `rates`; 0 if nothing is known yet."""
    rates: dict[str, float]
    """The rates per second, by counter name (RATE_TOTALS)."""
    latency_seconds: float
    latency: HistogramSnapshot | None
    """The durations of handler calls in the last `latency_seconds`."""


@dataclass(slots=True)
class _Record:
    series: GroupSeries = field(default_factory=GroupSeries)
    findings: FindingLog = field(default_factory=FindingLog)
    topics: tuple[TopicSnapshot, ...] = ()  # at the last sample
    samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=1 + round(LATENCY_SECONDS / STEP_SECONDS)))


class HistoryRecorder:
    """Records the history of a daemon's groups. `run` adds the points."""

    def __init__(self, clock: Clock, view: Callable[[], Awaitable[HostSnapshot]]) -> None:
        self._clock = clock
        self._view = view
        self._records: dict[str, _Record] = {}
        self._times = array("d", bytes(8 * POINTS))
        self._count = 0

    async def run(self) -> None:
        """Add a point every STEP_SECONDS, until cancelled."""
        while True:
            try:
                self.add_points(await self._view())
            except Exception:  # a failure of the history must not end the groups
                log.exception("history.failed")
            await asyncio.sleep(STEP_SECONDS)

    def add_points(self, view: HostSnapshot) -> None:
        """Add a point for every group in the snapshot `view`. Groups that are no longer configured are dropped."""
        groups = merge_processes(view.processes, view.past).groups if view.processes else ()
        now, at = self._clock.wall(), self._clock.monotonic()
        if groups or not view.missing:
            self._records = {group.name: self._records.get(group.name) or _Record() for group in groups}
        self._times[self._count % POINTS] = round(now, 3)  # a client sends the rounded time back as `since`
        by_name = {group.name: group for group in groups}
        for name, record in self._records.items():
            if (group := by_name.get(name)) is None:
                record.series.put(self._count, {})
                continue
            before = record.samples[-1] if record.samples else None
            is_idle = before is not None and group.topics == record.topics  # an idle group reuses its last totals
            sample = _Sample(at, before.totals if before is not None and is_idle else GroupTotals.of(group))
            record.topics = group.topics
            record.series.put(self._count, _point(before, group, sample))
            record.findings.observe(group, now)
            record.samples.append(sample)
        self._count += 1

    def recent_activity(self, name: str, totals: GroupTotals) -> RecentActivity:
        """Return the recent activity of a group. `totals` are its current totals."""
        samples, now = self._record(name).samples, self._clock.monotonic()
        old_enough = [one for one in samples if now - one.at >= RATE_SECONDS]
        before = old_enough[-1] if old_enough else samples[0] if samples else _Sample(now, totals)
        oldest = samples[0] if samples else before
        return RecentActivity(
            seconds=now - before.at,
            rates=_rates(before, _Sample(now, totals)),
            latency_seconds=now - oldest.at,
            latency=totals.latency_since(oldest.totals),
        )

    def findings(self, group: GroupSnapshot) -> list[dict[str, Any]]:
        """Update the findings of a group from this snapshot, and return them as JSON."""
        log = self._record(group.name).findings
        log.observe(group, self._clock.wall())
        return log.as_documents()

    def points_document(self, names: Collection[str] = (), since: float = 0.0) -> dict[str, Any]:
        """Return the points of these groups, or of all groups if `names` is empty, after the Unix time `since`."""
        first = max(0, self._count - POINTS)
        while first < self._count and self._times[first % POINTS] <= since:
            first += 1
        numbers = range(first, self._count)
        wanted = {name: record for name, record in self._records.items() if not names or name in names}
        return {
            "step_seconds": STEP_SECONDS,
            "most_points": POINTS,
            "times": [self._times[number % POINTS] for number in numbers],
            "groups": {
                name: {column: record.series.column(column, numbers) for column in COLUMNS}
                for name, record in wanted.items()
            },
        }

    def _record(self, name: str) -> _Record:
        """Return the record of a group. For a group without points, return an empty record, which is not stored."""
        return self._records.get(name) or _Record()


def _point(before: _Sample | None, group: GroupSnapshot, after: _Sample) -> dict[str, float | None]:
    values: dict[str, float | None] = {"lag": total_lag(group), "lag_seconds": longest_lag_seconds(group)}
    if before is None:
        return values
    if before.totals is after.totals:
        return values | dict.fromkeys(RATE_TOTALS, 0.0)
    latency = after.totals.latency_since(before.totals)
    if latency is not None:
        values |= {"p50": latency.quantile(0.5), "p99": latency.quantile(0.99)}
    return values | _rates(before, after)


def _rates(before: _Sample, after: _Sample) -> dict[str, float]:
    return rates_between(before.totals.counts, after.totals.counts, after.at - before.at)
