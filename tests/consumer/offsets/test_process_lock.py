"""The lock on a folder of offsets: who has it, who is refused, and when it is free again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.errors import InUseError
from rmqd.runtime import files as process_lock

HOLDER = """
import sys
from pathlib import Path
from rmqd.runtime import files as process_lock
process_lock.lock_file(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


@contextlib.contextmanager
def somebody(path: Path, owner: str = "4711 on elsewhere\n") -> Iterator[None]:
    """Another holder of the lock: it belongs to an open file, which another process would have, or we a second time."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(owner)
        file.flush()
        yield


def is_free(path: Path) -> bool:
    """Whether another process could have the lock."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def open_files(path: Path) -> int:
    """How many of our descriptors are of the file."""
    return sum(os.path.realpath(f"/proc/self/fd/{number}") == str(path) for number in os.listdir("/proc/self/fd"))


@pytest.mark.process
def test_another_process_is_refused_and_told_whose_it_is(path: Path) -> None:
    with holder(path) as other:
        with pytest.raises(InUseError, match=rf"in use by process {other.pid} on {socket.gethostname()}"):
            process_lock.lock_file(path)
        with pytest.raises(InUseError):
            process_lock.check_unlocked(path)


@pytest.mark.process
def test_kill_9_frees_it(path: Path) -> None:
    with holder(path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()

        process_lock.lock_file(path)


def test_a_process_may_take_its_own_lock_again(path: Path, tmp_path: Path) -> None:
    """So that a group that is reloaded, or a second group, does not shut itself out; however the path is written."""
    process_lock.lock_file(path)
    process_lock.lock_file(path)
    process_lock.check_unlocked(tmp_path / "x" / ".." / "lock")


def test_it_is_held_by_this_process_under_its_name(path: Path) -> None:
    process_lock.lock_file(path)

    assert not is_free(path)
    assert path.read_text() == f"{os.getpid()} on {socket.gethostname()}\n"


def test_who_is_refused_hears_by_whom_and_takes_nothing(path: Path) -> None:
    with somebody(path):
        for ask in (process_lock.lock_file, process_lock.check_unlocked):
            with pytest.raises(InUseError) as caught:
                ask(path)
            assert caught.value.owner == "4711 on elsewhere"
            assert path.read_text() == "4711 on elsewhere\n"
        assert open_files(path) == 1
    process_lock.lock_file(path)
    assert not is_free(path)


def test_a_folder_that_is_missing_is_the_callers_problem(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        process_lock.lock_file(tmp_path / "missing" / "lock")
