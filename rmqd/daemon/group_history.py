"""The history of every group over the last hour: counters, rates and problems.

The counters of a group, summed over its topics.

The points of one group over the last hour, in a ring of fixed size.

The problems of a group that the watchdog or its own checks found, with their start and end.

A process reports only its current problems. The daemon compares them with the previous ones, to know when each started
and ended.

Records a point of every group every few seconds, and computes recent rates from them.
"""

from __future__ import annotations

import asyncio
import math
import re
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from rmqd.consumer.health.causes import Problem
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from rmqd.daemon.groups.group_engine import HostView
from rmqd.daemon.metrics.metric_totals import merge_processes
from rmqd.runtime.clock import Clock
from rmqd.runtime.histogram import HistogramSnapshot


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


STEP_SECONDS: Final = 5.0
POINTS: Final = 720  # one hour
COLUMNS: Final = ("lag", "lag_seconds", "received", "handled", "failed", "retried", "dead_lettered", "p50", "p99")
_WHOLE: Final = frozenset({"lag"})


class GroupSeries:
    """A ring of points: 8 bytes for each of POINTS and COLUMNS, 52 KB in total."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values = array("d", [math.nan]) * (POINTS * len(COLUMNS))

    def put(self, number: int, values: Mapping[str, float | None]) -> None:
        """Write the point of this number over the one that is POINTS older. A missing column is unknown."""
        at = number % POINTS * len(COLUMNS)
        for offset, column in enumerate(COLUMNS):
            value = values.get(column)
            self._values[at + offset] = math.nan if value is None else value

    def column(self, name: str, numbers: range) -> list[float | int | None]:
        """Return the values of a column in the points with these numbers; None if unknown."""
        offset, width, is_whole = COLUMNS.index(name), len(COLUMNS), name in _WHOLE
        found = (self._values[number % POINTS * width + offset] for number in numbers)
        return [None if math.isnan(value) else int(value) if is_whole else _short(value) for value in found]


def _short(value: float) -> float | int:
    """Return the value with as many digits as a chart can show."""
    rounded = round(value, 1) if value >= 100 else round(value, 3) if value >= 1 else round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded


MOST_ENDED: Final = 10
MOST_QUEUES: Final = 20

# The cause, the topic of the stalled queues, and a text that distinguishes problems with the same cause.
_Key = tuple[str, str, str]
# A group may have several problems with these causes, for example one for each topic. For other causes each process may
# report the same problem.
_MANIFOLD: Final = frozenset({"topic_missing", "no_route", "no_permission", "broker_unreachable"})
_DIGITS: Final = re.compile(r"\d+")


@dataclass(slots=True)
class PastFinding:
    """One problem and its stalled queues; no queues if it concerns the group. Times are Unix seconds."""

    problem: Problem
    since: float
    queues: tuple[str, ...] = ()
    until: float | None = None

    def as_document(self) -> dict[str, Any]:
        """Return the finding as JSON. Only the first MOST_QUEUES queues are named."""
        return {
            "cause": self.problem.cause,
            "evidence": self.problem.evidence,
            "next": self.problem.next,
            "state": "active" if self.until is None else "ended",
            "since": round(self.since, 3),
            "until": None if self.until is None else round(self.until, 3),
            "queues": list(self.queues[:MOST_QUEUES]),
            "queue_count": len(self.queues),
        }


@dataclass(slots=True)
class FindingLog:
    """The findings of one group: the active ones, and the last ones that ended."""

    _active: dict[_Key, PastFinding] = field(default_factory=dict)
    _ended: deque[PastFinding] = field(default_factory=lambda: deque(maxlen=MOST_ENDED))

    def observe(self, group: GroupSnapshot, now: float) -> None:
        """Update the findings from a snapshot of this Unix time."""
        seen = dict(_found(group))
        for key, (problem, queues) in seen.items():
            finding = self._active.setdefault(key, PastFinding(problem, now))
            finding.problem, finding.queues = problem, queues
        for key in self._active.keys() - seen.keys():
            finding = self._active.pop(key)
            finding.until = now
            self._ended.append(finding)

    def as_documents(self) -> list[dict[str, Any]]:
        """Return all findings as JSON: active ones by start, then ended ones, the latest first."""
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
            names.append(f"{topic}@{queue.broker}:{queue.number}")
    for (cause, topic), (problem, names) in stalled.items():
        yield (cause, topic, ""), (problem, tuple(names))


log = structlog.get_logger(__name__)

RATE_SECONDS: Final = 10.0  # the period of the current rates
LATENCY_SECONDS: Final = 60.0
RATES: Final = ("received", "handled", "failed", "retried", "dead_lettered")


@dataclass(frozen=True, slots=True)
class _Sample:
    at: float  # monotonic
    totals: GroupTotals


@dataclass(frozen=True, slots=True)
class Recent:
    """The recent activity of a group."""

    seconds: float
    """The period of `rates`; 0 if nothing is known yet."""
    rates: dict[str, float]
    """By RATES, per second."""
    latency_seconds: float
    latency: HistogramSnapshot | None
    """The handler's calls in the last `latency_seconds`."""


@dataclass(slots=True)
class _Record:
    """The history of one group."""

    series: GroupSeries = field(default_factory=GroupSeries)
    findings: FindingLog = field(default_factory=FindingLog)
    samples: deque[_Sample] = field(default_factory=lambda: deque(maxlen=1 + round(LATENCY_SECONDS / STEP_SECONDS)))


class HistoryRecorder:
    """Records the groups of a daemon. `run` adds the points."""

    def __init__(self, clock: Clock, view: Callable[[], Awaitable[HostView]]) -> None:
        self._clock = clock
        self._view = view
        self._records: dict[str, _Record] = {}
        self._times = array("d", bytes(8 * POINTS))
        self._count = 0

    async def run(self) -> None:
        """Add a point every STEP_SECONDS, until cancelled."""
        while True:
            try:
                await self.run_once()
            except Exception:  # a failure of the history must not end the groups
                log.exception("history.failed")
            await asyncio.sleep(STEP_SECONDS)

    async def run_once(self) -> None:
        """Add one point now."""
        self.take(await self._view())

    def take(self, view: HostView) -> None:
        """Add a point for every group of this view. Groups that are no longer configured are dropped."""
        groups = merge_processes(view.processes, view.past).groups if view.processes else ()
        now, at = self._clock.wall(), self._clock.monotonic()
        if groups or not view.missing:
            self._records = {group.name: self._records.get(group.name) or _Record() for group in groups}
        self._times[self._count % POINTS] = round(now, 3)  # rounded as in `document`, so that `since` finds it again
        for name, record in self._records.items():
            group = next((one for one in groups if one.name == name), None)
            record.series.put(self._count, {} if group is None else _point(record, group, at))
            if group is not None:
                record.findings.observe(group, now)
                record.samples.append(_Sample(at, totals_of(group)))
        self._count += 1

    def recent(self, name: str, totals: GroupTotals) -> Recent:
        """Return the recent activity of a group, whose totals are now these."""
        samples, now = self._record(name).samples, self._clock.monotonic()
        old_enough = [one for one in samples if now - one.at >= RATE_SECONDS]
        before = old_enough[-1] if old_enough else samples[0] if samples else _Sample(now, totals)
        oldest = samples[0] if samples else before
        return Recent(
            seconds=now - before.at,
            rates=_rates(before, _Sample(now, totals)),
            latency_seconds=now - oldest.at,
            latency=_latency(oldest.totals, totals),
        )

    def findings(self, group: GroupSnapshot) -> list[dict[str, Any]]:
        """Return the findings of a group as JSON, including the findings of this snapshot."""
        log = self._record(group.name).findings
        log.observe(group, self._clock.wall())
        return log.as_documents()

    def document(self, names: Collection[str] = (), since: float = 0.0) -> dict[str, Any]:
        """Return the points of these groups, or of all, after the Unix time `since`, as JSON."""
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
        """Return the record of a group; an empty one, which is not kept, if the group has no points yet."""
        return self._records.get(name) or _Record()


def _point(record: _Record, group: GroupSnapshot, at: float) -> dict[str, float | None]:
    totals = totals_of(group)
    values: dict[str, float | None] = {"lag": total_lag(group), "lag_seconds": longest_lag_seconds(group)}
    if not record.samples:
        return values
    before = record.samples[-1]
    latency = _latency(before.totals, totals)
    if latency is not None:
        values |= {"p50": latency.quantile(0.5), "p99": latency.quantile(0.99)}
    return values | _rates(before, _Sample(at, totals))


def _rates(before: _Sample, after: _Sample) -> dict[str, float]:
    """Return the rates by RATES, per second. A counter that decreased, because the group changed its engine, counts as
    0.
    """
    seconds = after.at - before.at
    if seconds <= 0:
        return dict.fromkeys(RATES, 0.0)
    then, now = _counts(before.totals), _counts(after.totals)
    return {name: max(0, now[name] - then[name]) / seconds for name in RATES}


def _counts(totals: GroupTotals) -> dict[str, int]:
    return {
        "received": totals.received,
        "handled": totals.handled,
        "failed": totals.failed,
        "retried": totals.retried + totals.expired,
        "dead_lettered": totals.dead_lettered,
    }


def _latency(before: GroupTotals, after: GroupTotals) -> HistogramSnapshot | None:
    if before.duration is None or after.duration is None:
        return after.duration
    return after.duration.since(before.duration)
