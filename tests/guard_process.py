"""The process of `tests/run_guard.py`. It waits for the end of a run, then ends the processes that the run left.

    python guard_process.py MARK FOLDER PIDFD...

The run is over when a process of these descriptors ends. FOLDER is removed. To start fast, few modules are imported.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

GRACE_SECONDS = 1.0  # from SIGTERM to SIGKILL: PostgreSQL removes its shared memory, a JVM its files
MAX_SECONDS = 20.0
PAUSE_SECONDS = 0.05


def main() -> None:
    """Wait, end the run's processes, and become `rm`."""
    mark, folder, *descriptors = sys.argv[1:]
    watched = select.poll()
    for descriptor in descriptors:
        watched.register(int(descriptor), select.POLLIN)
    watched.poll()
    _report(_end(mark))
    os.execvp("rm", ["rm", "-rf", "--", folder])


def _end(mark: str) -> dict[int, str]:
    """End the marked processes until two scans find none, because one scan can miss a process that forks."""
    ended: dict[int, str] = {}
    begun, empty_scans = time.monotonic(), 0
    while empty_scans < 2 and (passed := time.monotonic() - begun) < MAX_SECONDS:
        found = _marked(mark)
        for pid in found:
            if passed > GRACE_SECONDS:
                _send(pid, signal.SIGKILL)
            elif pid not in ended:
                _send(pid, signal.SIGTERM)
        ended |= found
        empty_scans = 0 if found else empty_scans + 1
        time.sleep(PAUSE_SECONDS)
    return ended


def _marked(mark: str) -> dict[int, str]:
    """The pids and names of the processes with the mark among their resource limits. Zombies have ended."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and mark in _read(f"/proc/{entry}/limits"):
            name, _, state = _read(f"/proc/{entry}/stat").rpartition(") ")
            if state and state[0] not in "ZX":
                found[int(entry)] = name.partition("(")[2]
    return found


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:  # the process has ended
        return ""


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # the process has ended, or it is another user's
        return


def _report(ended: dict[int, str]) -> None:
    if not ended:
        return
    names = ", ".join(f"{name} {pid}" for pid, name in sorted(ended.items()))
    try:
        os.write(2, f"the test run left {len(ended)} processes, now ended: {names}\n".encode())
    except OSError:  # standard error is closed
        return


if __name__ == "__main__":
    main()
