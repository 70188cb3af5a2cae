"""A run that is killed leaves neither processes nor temporary files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.run_guard import ENDS_WITH
from tests.waiting import WAIT_SECONDS, wait_until

TOP = Path(__file__).parents[2]
RUN = """
import os, subprocess, sys, tempfile, time
from pathlib import Path

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"

def start(*command, **options):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, **options)
    return process.stdout.readline().strip() or process.pid

def fork():
    if (pid := os.fork()) == 0:
        time.sleep(1000)
    return pid

def test_starts_servers():
    Path(tempfile.mkdtemp(), "data").touch()
    servers = [
        start(sys.executable, "-c", DEAF),
        start("sh", "-c", "echo; exec sleep 1000", env={}),
        start("sh", "-c", "sleep 1000 >&- & echo $!"),  # its parent ends
        fork(),
    ]
    Path("written").write_text(" ".join(map(str, [tempfile.gettempdir(), os.getpid(), *servers])))
    Path("written").rename("started")
    time.sleep(1000)

def test_passes():
    Path("started").write_text(tempfile.gettempdir())
"""
SERVERS, PASSES = "test_run.py::test_starts_servers", "test_run.py::test_passes"
XDIST = ("-p", "xdist.plugin", "-n", "1")
pytestmark = pytest.mark.process


class Run:
    """A pytest run in its own folder."""

    def __init__(self, folder: Path, *arguments: str, ends_with: int | None = None) -> None:
        (folder / "test_run.py").write_text(RUN)
        command = ["-m", "pytest", "-p", "tests.run_guard", "-c", "/dev/null", "--rootdir", ".", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(TOP), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        if ends_with:
            environment[ENDS_WITH] = str(ends_with)
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=folder, env=environment, stdout=output, stderr=output
            )
        self._folder = folder
        self.pids = [self.process.pid]

    def await_servers(self) -> None:
        """Wait until the test has started its servers."""
        started = self._folder / "started"
        wait_until(lambda: started.exists() or self.process.poll() is not None, "the test starts its servers")
        assert self.process.poll() is None, self.output()
        self.pids += map(int, started.read_text().split()[1:])
        assert self.left() == [*self.pids, self.temporary()]

    def temporary(self) -> Path:
        """The folder where tests of this run make temporary files."""
        return Path((self._folder / "started").read_text().split()[0])

    def left(self) -> list[object]:
        """The processes and temporary files that still exist."""
        return [*filter(_is_running, self.pids), *filter(Path.exists, [self.temporary()])]

    def exit_code(self) -> int:
        """Wait for the end of pytest."""
        return self.process.wait(WAIT_SECONDS)

    def output(self) -> str:
        return (self._folder / "output").read_text()


@contextmanager
def running(folder: Path, *arguments: str, ends_with: int | None = None) -> Iterator[Run]:
    """A pytest whose test has started its servers. They are killed at the end of the block if they still run."""
    run = Run(folder, *arguments, ends_with=ends_with)
    try:
        run.await_servers()
        yield run
    finally:
        for pid in run.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.process.wait()


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path, SERVERS) as run:
        run.process.send_signal(number)
        wait_until(lambda: not run.left(), f"nothing is left of {run.left()}", 10)
        assert "the test run left 4 processes, now ended: " in run.output()


def test_a_run_and_its_xdist_workers_end_with_the_given_process(tmp_path: Path) -> None:
    make = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with make, running(tmp_path, SERVERS, *XDIST, ends_with=make.pid) as run:
        make.kill()
        wait_until(lambda: not run.left(), f"nothing is left of {run.left()}", 10)


def test_an_unknown_process_to_end_with_is_reported(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    run = Run(tmp_path, PASSES, ends_with=ended.pid)
    assert run.exit_code() == pytest.ExitCode.USAGE_ERROR
    assert f"{ENDS_WITH}: there is no process {ended.pid}" in run.output()


def test_a_run_that_passes_removes_only_its_temporary_files(tmp_path: Path) -> None:
    run = Run(tmp_path, PASSES)
    assert run.exit_code() == pytest.ExitCode.OK, run.output()
    wait_until(lambda: not run.temporary().exists(), "the folder is removed")
    assert "left" not in run.output()
