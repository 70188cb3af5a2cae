"""The lock on a folder of offsets: its holder, refused processes, and its release."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rmqd.runtime import files as process_lock
from tests.consumer.offsets.disks import disk_error, small_disk
from tests.consumer.offsets.test_process_lock import HOLDER, holder, is_free, open_files, path

__all__ = ["path"]


@pytest.mark.process
def test_a_check_leaves_the_lock_free_for_other_processes(path: Path) -> None:
    process_lock.check_unlocked(path)

    with holder(path):
        pass


@pytest.mark.process
def test_on_a_full_disk_the_lock_works_without_its_holders_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise disk_error()

    monkeypatch.setattr(Path, "write_text", full)
    process_lock.lock_file(path)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run([sys.executable, "-c", HOLDER, str(path)], check=True, capture_output=True, text=True)

    assert "in use by another process" in caught.value.stderr


@pytest.mark.process
def test_a_lock_on_a_read_only_disk_is_an_error(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk.path / "lock").touch()
        disk.read_only(True)
        with pytest.raises(OSError, match="Read-only file system"):
            process_lock.lock_file(disk.path / "lock")


@pytest.mark.process
def test_a_disk_with_a_lock_can_be_made_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        process_lock.lock_file(disk.path / "lock")
        disk.read_only(True)


FORKER = """
import os, sys
from pathlib import Path
from rmqd.runtime import files as process_lock
process_lock.lock_file(Path(sys.argv[1]))
reader, writer = os.pipe()
if not os.fork():
    os.write(writer, b".")
    os.read(int(sys.argv[2]), 1)
    os._exit(0)
os.read(reader, 1)
os._exit(0)
"""


def test_a_check_leaves_no_lock_and_no_open_file(path: Path) -> None:
    process_lock.check_unlocked(path)

    assert is_free(path)
    assert not open_files(path)


def test_a_check_does_not_release_a_held_lock(path: Path) -> None:
    process_lock.lock_file(path)
    process_lock.check_unlocked(path)

    assert not is_free(path)


def test_on_a_network_disk_the_file_is_opened_for_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def as_nfs(descriptor: int, operation: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise disk_error(errno.EBADF)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", as_nfs)
    process_lock.lock_file(path)
    monkeypatch.undo()

    assert not is_free(path)
    assert open_files(path) == 1


def test_a_disk_that_cannot_lock_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise disk_error(errno.ENOLCK)

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="No locks available"):
        process_lock.lock_file(path)

    assert not open_files(path)


@pytest.mark.parametrize(("number", "is_held"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, False)])
def test_the_holders_name_may_be_missing_if_the_disk_is_full(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_held: bool
) -> None:
    """A disk with another error would not store the offsets later."""

    def refuse(*_: object) -> int:
        raise disk_error(number)

    monkeypatch.setattr(Path, "write_text", refuse)
    with contextlib.nullcontext() if is_held else pytest.raises(OSError, match="Read-only"):
        process_lock.lock_file(path)

    assert is_free(path) is not is_held


@pytest.mark.process
def test_a_forked_child_does_not_keep_the_lock(path: Path) -> None:
    """A handler's process pool may outlive rmqd by a moment, and the next rmqd must not wait for it."""
    reader, writer = os.pipe()
    try:
        subprocess.run([sys.executable, "-c", FORKER, str(path), str(reader)], check=True, pass_fds=[reader])
        process_lock.lock_file(path)
    finally:
        os.close(reader)
        os.close(writer)
