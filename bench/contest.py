"""Run one contender: start its process, wait for its line of figures, and end it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from bench import contenders
from bench.job import Figures, Job
from bench.process_figures import STARTED

EXIT_SECONDS = 45  # rmqd's own shutdown_timeout is 30 s
LOG_LINES = 15


class ContestError(Exception):
    """A contender ended without figures, or too late. The text has the end of its output."""


def run(job: Job, when_started: Callable[[], None] | None = None, prefix: tuple[str, ...] = ()) -> Figures:
    """Run one contender.

    `when_started` is called once the contender reports its first message. `prefix` replaces the command's first word,
    to run it under another interpreter. Raises ContestError.
    """
    log_path = job.directory / "stderr"
    command = contenders.command(job)
    if prefix:
        command[:1] = prefix
    with log_path.open("wb") as log:
        spawned_at = time.time()
        process = subprocess.Popen(
            command,
            cwd=job.checkout,
            env=contenders.environment(job.checkout),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    with _ended(process, job.timeout_seconds):
        figures = _wait_for_figures(process, spawned_at, when_started)
        if figures is not None and job.contender in ("rmqd", contenders.BEFORE):
            process.send_signal(signal.SIGTERM)  # a daemon continues; the others exit on their own
        code = _exit_code(process)
    if figures is None:
        raise ContestError(f"{job.contender} gave no figures (exit status {code}):\n{_tail(log_path)}")
    if code != 0:
        raise ContestError(f"{job.contender} ended with exit status {code} after its figures:\n{_tail(log_path)}")
    return figures


def _wait_for_figures(
    process: subprocess.Popen[str], spawned_at: float, when_started: Callable[[], None] | None
) -> Figures | None:
    for line in _lines(process.stdout):
        if when_started is not None and line.strip() == STARTED:
            when_started()
            continue
        figures = Figures.from_line(line, spawned_at)
        if figures is not None:
            return figures
    return None


def _lines(stream: IO[str] | None) -> Iterator[str]:
    if stream is not None:
        yield from stream


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str], timeout_seconds: float) -> Iterator[None]:
    """Kill the process after this time, and at the latest at the end of the block."""
    watchdog = threading.Timer(timeout_seconds + EXIT_SECONDS, process.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _exit_code(process: subprocess.Popen[str]) -> int | None:
    try:
        process.communicate(timeout=EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    return process.returncode


def _tail(path: Path) -> str:
    return "\n".join(f"  {line}" for line in path.read_text(errors="replace").splitlines()[-LOG_LINES:])
