"""The lock on a directory of offsets: its owner, refused processes and its release."""

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
    """Hold the lock through another open file, as another process would."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(owner)
        file.flush()
        yield


def is_free(path: Path) -> bool:
    """Whether another process could acquire the lock."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def open_files(path: Path) -> int:
    """The number of our descriptors of the file."""
    return sum(os.path.realpath(f"/proc/self/fd/{number}") == str(path) for number in os.listdir("/proc/self/fd"))


@pytest.mark.process
def test_a_lock_of_another_process_is_refused_and_the_error_names_it(path: Path) -> None:
    with holder(path) as other:
        with pytest.raises(InUseError, match=rf"in use by process {other.pid} on {socket.gethostname()}"):
            process_lock.lock_file(path)
        with pytest.raises(InUseError):
            process_lock.check_unlocked(path)


@pytest.mark.process
def test_kill_9_releases_the_lock(path: Path) -> None:
    with holder(path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()

        process_lock.lock_file(path)


def test_a_process_may_acquire_its_own_lock_again(path: Path, tmp_path: Path) -> None:
    """A reloaded group or a second group is not locked out, whichever spelling of the path it uses."""
    process_lock.lock_file(path)
    process_lock.lock_file(path)
    process_lock.check_unlocked(tmp_path / "x" / ".." / "lock")


def test_the_lock_file_names_this_process(path: Path) -> None:
    process_lock.lock_file(path)

    assert not is_free(path)
    assert path.read_text() == f"{os.getpid()} on {socket.gethostname()}\n"


def test_a_refusal_names_the_owner_and_leaves_the_lock_file_unchanged(path: Path) -> None:
    with somebody(path):
        for ask in (process_lock.lock_file, process_lock.check_unlocked):
            with pytest.raises(InUseError) as caught:
                ask(path)
            assert caught.value.owner == "4711 on elsewhere"
            assert path.read_text() == "4711 on elsewhere\n"
        assert open_files(path) == 1
    process_lock.lock_file(path)
    assert not is_free(path)


def test_a_missing_directory_raises_file_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        process_lock.lock_file(tmp_path / "missing" / "lock")
