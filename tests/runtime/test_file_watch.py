"""The changed files that a watch returns, and when it returns them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmqd.runtime.files import FileWatch


def changed(files: FileWatch) -> list[str]:
    """The names of the changed files, once they are written."""
    assert files.changes() == [], "a file that has just changed may still be written"
    return [path.name for path in files.changes()]


def test_changed_new_and_removed_files_are_returned_once(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "c.txt"):
        (tmp_path / name).write_text("1")
    files = FileWatch([tmp_path])
    assert changed(files) == []
    (tmp_path / "a.py").write_text("22")
    (tmp_path / "b.py").unlink()
    (tmp_path / "c.txt").write_text("22")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "d.py").write_text("1")
    assert changed(files) == ["a.py", "b.py", "d.py"]
    assert changed(files) == []


def test_a_file_is_returned_only_after_it_is_written(tmp_path: Path) -> None:
    files = FileWatch([tmp_path])
    for text in ("1", "22", "333"):
        (tmp_path / "a.py").write_text(text)
        assert files.changes() == []
    assert [path.name for path in files.changes()] == ["a.py"]


def test_a_new_watch_returns_changes_that_the_watch_before_it_has_not(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("1")
    before = FileWatch([tmp_path])
    (tmp_path / "a.py").write_text("22")
    assert [path.name for path in FileWatch([tmp_path], before=before).changes()] == ["a.py"]


def test_environments_hidden_folders_and_subfolders_of_inside_are_ignored(tmp_path: Path) -> None:
    for name in ("env", ".hidden", "__pycache__", "node_modules"):
        (tmp_path / name).mkdir()
    (tmp_path / "env" / "pyvenv.cfg").touch()
    files, flat = FileWatch([tmp_path]), FileWatch(inside=[tmp_path])
    for name in ("env", ".hidden", "__pycache__", "node_modules"):
        (tmp_path / name / "a.py").write_text("1")
    assert changed(files) == []
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "a.py").write_text("1")
    (tmp_path / "b.py").write_text("1")
    assert changed(flat) == ["b.py"]


def test_a_folder_that_cannot_be_listed_has_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("1")
    files = FileWatch(inside=[tmp_path])

    def refuse(folder: object) -> list[str]:
        raise PermissionError(folder)

    monkeypatch.setattr(os, "listdir", refuse)
    assert changed(files) == ["a.py"]
