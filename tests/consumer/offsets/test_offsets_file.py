"""The file offsets.json and its backup: reads, writes and damage."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.offsets.local_file_store import OffsetsFile
from rmqd.errors import OffsetStoreError
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.offsets.disks import disk_error, small_disk

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 7)
JAVA_5 = b"""{
\t"offsetTable":{
\t\t{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"orders"
\t\t}:12,
\t\t{
\t\t\t"brokerName":"broker-b",
\t\t\t"queueId":7,
\t\t\t"topic":"orders"
\t\t}:9007199254740993
\t}
}"""
JAVA_4 = b"""{
\t"offsetTable":{{
\t\t\t"brokerName":"broker-a",
\t\t\t"queueId":0,
\t\t\t"topic":"orders"
\t\t}:12,{
\t\t\t"brokerName":"broker-b",
\t\t\t"queueId":7,
\t\t\t"topic":"orders"
\t\t}:9007199254740993
\t}
}"""
DAMAGED = {
    "empty": b"",
    "cut": JAVA_5[:-20],
    "zeros": bytes(len(JAVA_5)),
    "another file": b'{"a": 1}',
    "no JSON": b"offsets",
    "not text": b"\xff\xfe",
    "a word for an offset": JAVA_5.replace(b":12", b':"x"'),
}


@pytest.fixture
def file(tmp_path: Path) -> OffsetsFile:
    return OffsetsFile(tmp_path / "offsets" / "g")


def stored(tmp_path: Path) -> OffsetsFile:
    """Files that hold 1, with 0 as the backup."""
    file = OffsetsFile(tmp_path)
    file.save({A: 0})
    file.save({A: 1})
    return file


def test_a_group_without_files_has_no_offsets(file: OffsetsFile) -> None:
    assert file.load() == {}
    assert not file.path.parent.exists()


def test_saved_offsets_are_loaded(file: OffsetsFile) -> None:
    file.save({A: 12, B: 0})

    assert OffsetsFile(file.path.parent).load() == {A: 12, B: 0}


def test_the_file_equals_javas_byte_for_byte(file: OffsetsFile) -> None:
    file.save({B: 9007199254740993, A: 12})

    assert file.path.read_bytes() == JAVA_5


@pytest.mark.parametrize("content", [JAVA_5, JAVA_4], ids=["5.5", "4.9"])
def test_javas_files_are_read(file: OffsetsFile, content: bytes) -> None:
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(content)

    assert file.load() == {A: 12, B: 9007199254740993}


def test_an_offset_that_java_has_not_set_is_ignored(file: OffsetsFile) -> None:
    file.path.parent.mkdir(parents=True)
    file.path.write_bytes(JAVA_5.replace(b":12", b":-1"))

    assert file.load() == {B: 9007199254740993}


def test_the_backup_holds_the_previous_offsets(tmp_path: Path) -> None:
    file = stored(tmp_path)

    assert OffsetsFile(tmp_path).load() == {A: 1}
    file.path.unlink()
    assert OffsetsFile(tmp_path).load() == {A: 0}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_the_backup_is_read_if_the_file_is_damaged(tmp_path: Path, content: bytes) -> None:
    stored(tmp_path).path.write_bytes(content)

    with capture_logs() as logs:
        assert OffsetsFile(tmp_path).load() == {A: 0}

    (line,) = logs
    assert (line["event"], line["log_level"]) == ("offset.backup_used", "warning")
    assert str(tmp_path / "offsets.json") in line["instead_of"]


def test_a_damaged_file_never_becomes_the_backup(tmp_path: Path) -> None:
    stored(tmp_path).path.write_bytes(b"")
    file = OffsetsFile(tmp_path)
    file.load()
    file.save({A: 2})
    file.path.write_bytes(b"")

    assert OffsetsFile(tmp_path).load() == {A: 0}


@pytest.mark.parametrize("backup", [*DAMAGED.values(), None], ids=[*DAMAGED.keys(), "missing"])
def test_a_damaged_file_without_a_good_backup_raises_an_error(tmp_path: Path, backup: bytes | None) -> None:
    file = stored(tmp_path)
    file.path.write_bytes(b"{")
    file.backup.unlink() if backup is None else file.backup.write_bytes(backup)

    with pytest.raises(OffsetStoreError) as caught:
        OffsetsFile(tmp_path).load()

    text = str(caught.value)
    assert f"{file.path} is damaged: " in text
    assert str(file.backup) in text
    assert "consume_from_where" in text
    assert file.path.read_bytes() == b"{"


def test_a_damaged_backup_without_the_file_raises_an_error(tmp_path: Path) -> None:
    file = stored(tmp_path)
    file.path.unlink()
    file.backup.write_bytes(b"{")

    with pytest.raises(OffsetStoreError, match=r"offsets\.json is missing; .*\.bak is damaged"):
        OffsetsFile(tmp_path).load()


def test_an_unreadable_file_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stored(tmp_path)

    def refuse(path: Path) -> bytes:
        raise disk_error(errno.EACCES)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(OffsetStoreError, match="cannot be read: Permission denied"):
        OffsetsFile(file.path.parent).load()


def test_offsets_of_each_identity_are_read_without_a_switch(file: OffsetsFile) -> None:
    """If the identity is unknown, the offsets of the present file are returned."""
    file.identity = "c1/~/g"
    file.save({A: 1})
    file.switch_to("c2/~/g")
    file.save({A: 2})
    following = OffsetsFile(file.path.parent)
    offsets = {identity: following.offsets_of(identity) for identity in ("", "c1/~/g", "c2/~/g", "c3/~/g")}
    assert offsets == {"": {A: 2}, "c1/~/g": {A: 1}, "c2/~/g": {A: 2}, "c3/~/g": {}}


@pytest.mark.parametrize("survived", range(6))
def test_a_crash_at_any_step_of_a_save_leaves_old_or_new_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """The process is killed after each system call, and cleans nothing up."""
    file, calls = stored(tmp_path), [0]

    class Killed(BaseException):
        pass

    def mortal(call: Any) -> Any:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            if calls[0] >= survived:
                raise Killed
            calls[0] += 1
            return call(*arguments, **named)

        return wrapped

    monkeypatch.setattr(os, "fsync", mortal(os.fsync))
    monkeypatch.setattr(Path, "replace", mortal(Path.replace))
    if survived < 5:  # two files are synced and renamed each, then the folder is
        with pytest.raises(Killed):
            file.save({A: 2})
    else:
        file.save({A: 2})

    assert OffsetsFile(tmp_path).load() == {A: 2 if survived >= 4 else 1}


def test_a_failed_sync_leaves_the_files_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stored(tmp_path)

    def full(descriptor: int) -> None:
        raise disk_error()

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        file.save({A: 2})

    assert sorted(path.name for path in tmp_path.iterdir()) == ["offsets.json", "offsets.json.bak"]
    assert OffsetsFile(tmp_path).load() == {A: 1}


@pytest.mark.process
def test_a_full_or_read_only_disk_keeps_the_stored_offsets(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        file = stored(disk.path / "g")
        disk.fill()
        with pytest.raises(OSError, match="No space left"):
            file.save({A: 2})
        assert OffsetsFile(file.path.parent).load() == {A: 1}
        disk.empty()
        file.save({A: 3})
        disk.read_only(True)
        with pytest.raises(OSError, match="Read-only"):
            file.save({A: 4})
        assert OffsetsFile(file.path.parent).load() == {A: 3}


def test_a_failed_rename_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stored offsets stay as they were."""
    file = stored(tmp_path)
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if target == file.path:
            raise disk_error()
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        file.save({A: 2})

    assert not list(tmp_path.glob("*.tmp"))
    assert OffsetsFile(tmp_path).load() == {A: 1}


def test_a_save_syncs_the_whole_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the file could be empty after a power failure."""
    file, fsync, synced = OffsetsFile(tmp_path), os.fsync, list[int]()

    def note(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            synced.append(os.fstat(descriptor).st_size)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    file.save({A: 1})
    assert synced == [file.path.stat().st_size]
