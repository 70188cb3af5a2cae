"""Permissions of local state, whatever the umask is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqd.consumer.offsets.local_file_store import OffsetsFile
from rmqd.runtime.files import make_folder, open_file
from rmqd.wire.message_queue import MessageQueue


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    """A umask that restricts nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def write(path: Path) -> None:
    os.close(open_file(path, os.O_WRONLY | os.O_CREAT))


def test_others_may_not_read_the_offsets_of_a_group(tmp_path: Path) -> None:
    file = OffsetsFile(tmp_path / "state" / "offsets" / "g")
    for offset in range(2):
        file.save({MessageQueue("orders", "broker-a", 0): offset})

    assert (mode(file.path), mode(file.backup)) == (0o640, 0o640)
    assert [mode(path) for path in (file.path.parent, *file.path.parents[1:3])] == [0o750] * 3


def test_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o777)
    make_folder(tmp_path / "there")
    make_folder(tmp_path / "there" / "below")

    assert (mode(tmp_path / "there"), mode(tmp_path / "there" / "below")) == (0o777, 0o750)


@pytest.mark.parametrize(
    ("before", "after"), [(0o666, 0o640), (0o777, 0o640), (0o601, 0o600), (0o600, 0o600), (0o440, 0o440)]
)
def test_permissions_of_others_on_an_older_file_are_removed(tmp_path: Path, before: int, after: int) -> None:
    """Stricter modes stay: the owner may have removed more."""
    path = tmp_path / "file"
    path.touch()
    path.chmod(before)
    os.close(open_file(path, os.O_RDONLY))

    assert mode(path) == after


def test_a_file_of_another_user_is_used_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the owner may change its mode."""

    def refuse(*_: object) -> None:
        raise PermissionError

    path = tmp_path / "file"
    path.touch(mode=0o666)
    monkeypatch.setattr(os, "fchmod", refuse)
    write(path)

    assert mode(path) == 0o666


def test_the_mode_of_a_private_file_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk without modes every change is an error, or is logged by the kernel."""
    changed: list[int] = []
    path = tmp_path / "file"
    path.touch(mode=0o640)
    monkeypatch.setattr(os, "fchmod", lambda _, mode: changed.append(mode))
    write(path)

    assert not changed
