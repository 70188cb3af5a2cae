"""The lock on a folder of offsets: who has it, who is refused, and when it is free again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rmqd.runtime import files as process_lock
from tests.consumer.offsets.disks import disk_error, small_disk
from tests.consumer.offsets.test_process_lock import HOLDER, holder, path

__all__ = ["path"]


@pytest.mark.process
def test_looking_leaves_it_free(path: Path) -> None:
    process_lock.check_free(path)

    with holder(path):
        pass


@pytest.mark.process
def test_a_full_disk_leaves_the_lock_without_a_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise disk_error()

    monkeypatch.setattr(Path, "write_text", full)
    process_lock.hold(path)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run([sys.executable, "-c", HOLDER, str(path)], check=True, capture_output=True, text=True)

    assert "in use by another process" in caught.value.stderr


@pytest.mark.process
def test_a_disk_that_is_read_only_from_the_start_is_the_callers_problem(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        (disk.path / "lock").touch()
        disk.read_only(True)
        with pytest.raises(OSError, match="Read-only file system"):
            process_lock.hold(disk.path / "lock")


@pytest.mark.process
def test_the_lock_does_not_keep_a_disk_from_being_made_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        process_lock.hold(disk.path / "lock")
        disk.read_only(True)
