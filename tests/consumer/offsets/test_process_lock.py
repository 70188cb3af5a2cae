"""The lock on a folder of offsets: who has it, who is refused, and when it is free again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.consumer.offsets import process_lock
from rmqd.errors import InUseError
from tests.consumer.offsets.disks import disk_error, small_disk

pytestmark = pytest.mark.process

FORKER = """
import os, sys
from pathlib import Path
from rmqd.consumer.offsets import process_lock
process_lock.hold(Path(sys.argv[1]))
reader, writer = os.pipe()
if not os.fork():
    os.write(writer, b".")
    os.read(int(sys.argv[2]), 1)
    os._exit(0)
os.read(reader, 1)
os._exit(0)
"""
HOLDER = """
import sys
from pathlib import Path
from rmqd.consumer.offsets import process_lock
process_lock.hold(Path(sys.argv[1]))
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


def test_another_process_is_refused_and_told_whose_it_is(path: Path) -> None:
    with holder(path) as other:
        with pytest.raises(InUseError, match=rf"in use by process {other.pid} on {socket.gethostname()}"):
            process_lock.hold(path)
        with pytest.raises(InUseError):
            process_lock.check_free(path)


def test_kill_9_frees_it(path: Path) -> None:
    with holder(path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()

        process_lock.hold(path)


def test_a_process_may_take_its_own_lock_again(path: Path, tmp_path: Path) -> None:
    """So that a group that is reloaded, or a second group, does not shut itself out; however the path is written."""
    process_lock.hold(path)
    process_lock.hold(path)
    process_lock.check_free(tmp_path / "x" / ".." / "lock")


def test_looking_leaves_it_free(path: Path) -> None:
    process_lock.check_free(path)

    with holder(path):
        pass


def test_a_full_disk_leaves_the_lock_without_a_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise disk_error()

    monkeypatch.setattr(Path, "write_text", full)
    process_lock.hold(path)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run([sys.executable, "-c", HOLDER, str(path)], check=True, capture_output=True, text=True)

    assert "in use by another process" in caught.value.stderr


def test_a_forked_child_does_not_keep_it(path: Path) -> None:
    """A handler's pool of processes may outlive us by a moment: the next rmqd must not wait for it."""
    reader, writer = os.pipe()
    try:
        subprocess.run([sys.executable, "-c", FORKER, str(path), str(reader)], check=True, pass_fds=[reader])
        process_lock.hold(path)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_folder_that_is_missing_is_the_callers_problem(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        process_lock.hold(tmp_path / "missing" / "lock")


def test_a_disk_that_is_read_only_from_the_start_is_the_callers_problem(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk.path / "lock").touch()
        disk.read_only(True)
        with pytest.raises(OSError, match="Read-only file system"):
            process_lock.hold(disk.path / "lock")


def test_the_lock_does_not_keep_a_disk_from_being_made_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        process_lock.hold(disk.path / "lock")
        disk.read_only(True)
