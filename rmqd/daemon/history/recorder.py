"""Records a point of every group every few seconds, and computes recent rates from them."""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from rmqd.clock import Clock
from rmqd.consumer.stats.snapshot import GroupSnapshot
from rmqd.daemon.groups.host import HostView
from rmqd.daemon.history.findings import FindingLog
from rmqd.daemon.history.series import COLUMNS, POINTS, STEP_SECONDS, GroupSeries
from rmqd.daemon.history.totals import GroupTotals, longest_lag_seconds, total_lag, totals_of
from rmqd.daemon.metrics.totals import merge_processes
from rmqd.histogram import HistogramSnapshot

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


class Recorder:
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
