"""`jsonl`: acknowledged messages are on the disk, and the file has only complete lines."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqd import Batch
from rmqd_handlers.jsonl import JsonLines
from tests.handlers.messages import make_batch, make_message, meant
from tests.handlers.options import not_refused


def make_handler(path: Path, **options: object) -> JsonLines:
    handler = JsonLines(JsonLines.Options.model_validate({"path": str(path), **options}))
    handler.start()
    return handler


def batch_of(*bodies: str) -> Batch:
    return make_batch(*(make_message(body.encode()) for body in bodies))


def bodies_in(*paths: Path) -> list[str]:
    return [json.loads(line)["body"] for path in paths for line in path.read_bytes().splitlines()]


def all_files(path: Path) -> list[Path]:
    return [*sorted(path.parent.glob(f"{path.name}.*")), path]


@contextmanager
def disk_full_after(size_bytes: int) -> Iterator[None]:
    """Let writes beyond this file size fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_batches_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    handler = make_handler(path)

    handler.handle(batch_of("1", "2"))
    handler.handle(batch_of("3"))
    assert bodies_in(path) == ["1", "2", "3"]  # before stop: acknowledged messages are written

    handler.stop()
    make_handler(path).handle(batch_of("4"))
    assert bodies_in(path) == ["1", "2", "3", "4"]


def test_a_batch_is_on_the_disk_before_it_is_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real_fsync = os.fsync
    path = tmp_path / "orders.jsonl"
    handler = make_handler(path)

    def fsync(fd: int) -> None:
        real_fsync(fd)
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fsync", fsync)
    handler.handle(batch_of("1"))

    assert synced[-1] == path.stat().st_size > 0


def test_a_batch_that_fails_halfway_leaves_no_lines_and_can_be_retried(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    handler = make_handler(path)
    handler.handle(batch_of("before"))
    size_before = path.stat().st_size

    with disk_full_after(size_before + 100), pytest.raises(OSError, match="File too large") as raised:
        handler.handle(batch_of("x" * 50, "y" * 5000))
    assert meant(raised.value) == "again"
    assert path.stat().st_size == size_before

    handler.handle(batch_of("x" * 50, "y" * 5000))
    assert bodies_in(path) == ["before", "x" * 50, "y" * 5000]


def test_the_incomplete_line_of_a_killed_writer_is_cut_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text('{"body": "whole"}\n{"body": "torn' + "n" * 100_000)

    make_handler(path).handle(batch_of("new"))

    assert bodies_in(path) == ["whole", "new"]
    assert [record.getMessage() for record in caplog.records] == ["jsonl.torn_line_cut"]


def test_a_missing_folder_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        make_handler(tmp_path / "missing" / "orders.jsonl")


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, object]] = [
        {},
        {"path": "a", "max_size": "0B"},
        {"path": "a", "keep": -1},
        {"path": "a", "x": 1},
    ]

    assert not_refused(JsonLines.Options, wrong) == []
