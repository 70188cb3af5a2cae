"""CPU time of each kind of process while Spark works: brokers, JVMs, and Spark's Python processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.machine import process_cpu_seconds

BROKER, JVM, PYTHON = "broker", "JVM", "Python"


def descendants(pid: int) -> Iterator[int]:
    """Yield all descendants of a process."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                yield child
                yield from descendants(child)


def own(brokers: Iterable[int]) -> list[int]:
    """Return all running processes of the benchmark, except for this one."""
    return sorted({*brokers, *descendants(os.getpid())})


def spent_seconds(brokers: Iterable[int]) -> dict[str, float]:
    """Return CPU seconds so far by kind, without this process, which only waits."""
    found = {BROKER: 0.0, JVM: 0.0, PYTHON: 0.0}
    brokers = set(brokers)
    for pid in own(brokers):
        with contextlib.suppress(OSError):  # the process has ended
            program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
            kind = BROKER if pid in brokers else JVM if program.endswith(b"java") else PYTHON
            found[kind] += process_cpu_seconds(pid)
    return found
