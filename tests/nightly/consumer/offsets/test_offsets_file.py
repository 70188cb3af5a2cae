"""offsets.json and its backup: loading, saving, and damage."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

import pytest

from rmqd.consumer.offsets.local_file_store import OffsetsFile
from rmqd.errors import OffsetStoreError
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.offsets.disks import disk_error
from tests.consumer.offsets.test_offsets_file import A, file, stored

__all__ = ["file"]


def test_names_of_any_kind_survive(file: OffsetsFile) -> None:
    queue = MessageQueue('%RETRY%"größe"', "broker\\1", 3)
    file.save({queue: 5})

    assert OffsetsFile(file.path.parent).load() == {queue: 5}


def test_a_damaged_backup_is_ignored(tmp_path: Path) -> None:
    stored(tmp_path).backup.write_bytes(b"{")

    assert OffsetsFile(tmp_path).load() == {A: 1}


def test_a_removed_directory_is_created_again(tmp_path: Path) -> None:
    file = OffsetsFile(tmp_path / "g")
    file.save({A: 1})
    for path in (file.path, file.path.parent):
        path.unlink() if path.is_file() else path.rmdir()

    file.save({A: 2})

    assert OffsetsFile(tmp_path / "g").load() == {A: 2}


@pytest.mark.parametrize(("number", "is_failure"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_failed_sync_of_the_folder_is_an_error_if_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_failure: bool
) -> None:
    """Some file systems cannot sync a folder. If the disk fails, nothing is certain."""
    file, fsync = stored(tmp_path), os.fsync

    def of_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise disk_error(number)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", of_files)
    with pytest.raises(OSError, match="Input/output") if is_failure else contextlib.nullcontext():
        file.save({A: 2})


def test_saving_leaves_no_file_open(tmp_path: Path) -> None:
    file = stored(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for offset in range(2, 12):
        file.save({A: offset})

    assert len(os.listdir("/proc/self/fd")) == before


def test_an_empty_file_is_reported_as_empty(tmp_path: Path) -> None:
    file = stored(tmp_path)
    file.path.write_bytes(b"")
    file.backup.unlink()
    with pytest.raises(OffsetStoreError, match="is damaged: it is empty"):
        OffsetsFile(tmp_path).load()
