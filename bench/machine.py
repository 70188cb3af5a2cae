"""Detection of other work on the machine, which makes a measurement useless."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

QUIET_SHARE = 0.1
POLL_SECONDS = 0.5
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds used so far: by the whole machine, by the measured cluster, and by this process and its children."""

    at_seconds: float
    machine_seconds: float
    cluster_seconds: float
    own_seconds: float

    @classmethod
    def now(cls, cluster_pids: list[int]) -> Usage:
        """Return the current values. Children count once they have ended and were waited for."""
        children, own = resource.getrusage(resource.RUSAGE_CHILDREN), resource.getrusage(resource.RUSAGE_SELF)
        return cls(
            at_seconds=time.monotonic(),
            machine_seconds=_machine_seconds(),
            cluster_seconds=sum(process_cpu_seconds(pid) for pid in cluster_pids),
            own_seconds=children.ru_utime + children.ru_stime + own.ru_utime + own.ru_stime,
        )

    def foreign_share_since(self, before: Usage) -> float:
        """Return the share of CPU time that other work has used since `before`, 0 to 1, stolen time included."""
        elapsed = (self.at_seconds - before.at_seconds) * (os.cpu_count() or 1)
        ours = self.cluster_seconds - before.cluster_seconds + self.own_seconds - before.own_seconds
        return max(0.0, (self.machine_seconds - before.machine_seconds - ours) / elapsed)


def process_cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def wait_until_quiet(timeout_seconds: float) -> None:
    """Wait until the processors are nearly idle, or the time is over."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        before = Usage.now([])
        time.sleep(POLL_SECONDS)
        if Usage.now([]).foreign_share_since(before) < QUIET_SHARE:
            return


def _machine_seconds() -> float:
    user, nice, system, _idle, _iowait, irq, softirq, steal, *_ = (
        int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND
