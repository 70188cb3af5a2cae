"""A run leaves no server behind, even if it is killed: a guard process waits for its end and ends leftovers.

A resource limit marks the processes of a run, and every child inherits it. An environment variable does not work: some
tests replace the environment, and Redis and PostgreSQL overwrite it with their titles. The limit, RLIMIT_RTTIME, limits
real-time scheduling, which the tests do not use, and the mark is a number of microseconds too large to be reached.

If RMQD_TEST_ENDS_WITH names a process, the run also ends with that process: `make` and `.ci/run` name themselves.
"""

from __future__ import annotations

import os
import resource
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ENDS_WITH = "RMQD_TEST_ENDS_WITH"
MIN_MARK = 2**62


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist starts its workers
def pytest_sessionstart(session: pytest.Session) -> None:
    """Guard the run. The workers of pytest-xdist inherit the mark."""
    if not hasattr(session.config, "workerinput"):
        guard()


def guard() -> None:
    """Start the guard, and mark this process."""
    if sys.platform != "linux":
        return
    mark, most = MIN_MARK + secrets.randbelow(MIN_MARK), resource.RLIM_INFINITY
    try:
        resource.setrlimit(resource.RLIMIT_RTTIME, (most, most))  # the guard itself has no mark
        watched = [_pidfd(pid) for pid in (str(os.getpid()), os.environ.get(ENDS_WITH)) if pid]
    except (OSError, ValueError):  # a sandbox that only resembles Linux: the run has no guard
        return
    _start_guard(mark, _make_folder(), watched)
    resource.setrlimit(resource.RLIMIT_RTTIME, (mark, most))
    os.environ[ENDS_WITH] = str(os.getpid())  # for a pytest that a test starts: it has its own mark and guard


def _pidfd(pid: str) -> int:
    try:
        return os.pidfd_open(int(pid))
    except ProcessLookupError:
        raise pytest.UsageError(f"{ENDS_WITH}: there is no process {pid}") from None


def _make_folder() -> Path:
    """Make the run's folder for temporary files, which the guard removes. pytest keeps its own folders elsewhere."""
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="rmqd-run-"))
    folder.chmod(0o1777)  # as /tmp: servers run as other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def _start_guard(mark: int, folder: Path, watched: list[int]) -> None:
    """Start the guard through a shell, so that it is not a child of this process, and not in its session."""
    program = str(Path(__file__).with_name("guard_process.py"))
    guard = [sys.executable, "-I", "-S", program, str(mark), str(folder)]
    subprocess.run(
        ["sh", "-c", '"$@" &', "sh", *guard, *map(str, watched)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=watched,
        start_new_session=True,
        check=True,
    )
    for descriptor in watched:
        os.close(descriptor)
