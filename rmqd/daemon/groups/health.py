"""Liveness and readiness of the process. Liveness depends only on the event loop, readiness on every group."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rmqd.clock import Clock
from rmqd.daemon.groups.host import HostView
from rmqd.histogram import Histogram, HistogramSnapshot

TICK_SECONDS = 1.0
STALE_TICK_SECONDS = 10.0
LOOP_DELAY_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The result of one check. `reason` is the problem, or empty if the check passed."""

    name: str
    reason: str

    @property
    def ok(self) -> bool:
        """Whether the check has passed."""
        return not self.reason


def readiness(view: HostView, stopping: bool) -> tuple[HealthCheck, ...]:
    """Return the readiness checks: each group has a route and its first assignment, in every process."""
    checks = [HealthCheck("daemon", "draining: the process is stopping" if stopping else "")]
    checks += [HealthCheck("workers", reason) for reason in view.missing]
    for process in view.processes:
        suffix = "" if process.worker is None else f" in worker {process.worker}"
        for group in process.groups:
            reason = "" if group.ready else group.not_ready_reason or group.state
            checks.append(HealthCheck(f"group {group.name}{suffix}", reason))
    return tuple(checks)


class LoopMonitor:
    """Measures how late the event loop runs a timer, once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.monotonic()
        self._delays = Histogram(LOOP_DELAY_SECONDS)

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            self._last = self._clock.monotonic()
            await asyncio.sleep(TICK_SECONDS)
            self._delays.observe(max(0.0, self._clock.monotonic() - self._last - TICK_SECONDS))

    def liveness(self) -> HealthCheck:
        """Check that the loop ran its timer recently."""
        age = self._clock.monotonic() - self._last
        late = age > STALE_TICK_SECONDS
        return HealthCheck("event loop", f"its last tick is {age:.1f} s old" if late else "")

    def snapshot(self) -> HistogramSnapshot:
        """The delays so far, in seconds."""
        return self._delays.snapshot()
