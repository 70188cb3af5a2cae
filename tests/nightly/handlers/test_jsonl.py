"""`jsonl`: several writers on one file, and files that change between two batches."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from tests.handlers.test_jsonl import all_files, batch_of, bodies_in, make_handler
from tests.waiting import wait_until


def _write_until_killed(path: Path, writer: int, acknowledged: str) -> None:
    handler = make_handler(path, max_size="64KiB")
    with Path(acknowledged).open("a") as ledger:
        for number in range(100_000):
            body = f"{writer}-{number}"
            handler.handle(batch_of(body, "x" * 2000))
            ledger.write(f"{body}\n")
            ledger.flush()


def _has_begun(ledger: Path) -> bool:
    return ledger.exists() and ledger.read_bytes().count(b"\n") >= 50


@pytest.mark.process
def test_killed_processes_that_share_a_file_lose_no_acknowledged_message(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    ledgers = [tmp_path / f"acknowledged-{writer}" for writer in range(3)]
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_write_until_killed, args=(path, writer, str(ledger)))
        for writer, ledger in enumerate(ledgers)
    ]
    for process in writers:
        process.start()
    try:
        wait_until(lambda: all(map(_has_begun, ledgers)), "each writer wrote 50 batches", seconds=60)
        for process in writers:  # one after the other, while the others continue
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    finally:
        for process in writers:
            process.kill()
            process.join()
    make_handler(path).stop()  # the next writer removes an incomplete last line

    written = set(bodies_in(*all_files(path)))
    assert {body for ledger in ledgers for body in ledger.read_text().split()} <= written


def test_a_failed_fsync_fails_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "orders.jsonl"
    handler = make_handler(path)

    def fsync(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="Input/output error"):
            handler.handle(batch_of("1"))

    handler.handle(batch_of("1"))
    assert bodies_in(path) == ["1"]


def test_threads_share_the_file(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    handler = make_handler(path, max_size="4KiB")

    def write(thread: int) -> None:
        for number in range(20):
            handler.handle(batch_of(f"{thread}-{number}-a", f"{thread}-{number}-b"))

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    bodies = bodies_in(*all_files(path))
    assert sorted(bodies) == sorted(f"{t}-{n}-{x}" for t in range(8) for n in range(20) for x in "ab")
    assert [first[:-1] for first in bodies[::2]] == [second[:-1] for second in bodies[1::2]]  # batches are contiguous


def test_a_batch_larger_than_max_size_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    make_handler(path, max_size="1KiB").handle(batch_of("x" * 3000))

    assert bodies_in(path) == ["x" * 3000]


def test_a_file_that_was_moved_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    handler = make_handler(path)
    handler.handle(batch_of("1"))
    path.rename(tmp_path / "elsewhere")
    handler.handle(batch_of("2"))

    assert bodies_in(tmp_path / "elsewhere") == ["1"]
    assert bodies_in(path) == ["2"]


def test_a_file_rotated_by_another_process_is_reopened(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    one, other = make_handler(path, max_size="1B"), make_handler(path, max_size="1MiB")
    one.handle(batch_of("1"))
    one.handle(batch_of("2"))
    other.handle(batch_of("3"))

    assert bodies_in(path) == ["2", "3"]


def test_a_last_line_that_only_lacks_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    path.write_text('{"body": "whole"}\n{"body": "whole too"}')

    make_handler(path).handle(batch_of("new"))

    assert bodies_in(path) == ["whole", "whole too", "new"]


def test_full_files_are_renamed_and_none_is_deleted_without_keep(tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    handler = make_handler(path, max_size="2KiB")
    for number in range(30):
        handler.handle(batch_of(str(number)))

    files = all_files(path)
    assert len(files) > 3
    assert all(file.stat().st_size <= 2048 for file in files)
    assert bodies_in(*files) == [str(number) for number in range(30)]


def test_keep_retains_the_newest_renamed_files(tmp_path: Path) -> None:
    """Also if the name contains glob characters. Other files whose name starts with it are not deleted."""
    path = tmp_path / "orders[eu].jsonl"
    foreign = [tmp_path / f"{path.name}.{end}" for end in ("backup", "2.20260101T000000.000000Z")]
    for one in foreign:
        one.write_text("not ours")
    handler = make_handler(path, max_size="1B", keep=3)
    for number in range(6):
        handler.handle(batch_of(str(number)))

    rotated = sorted({*tmp_path.iterdir()} - {path, *foreign})
    assert bodies_in(*rotated, path) == ["2", "3", "4", "5"]
    assert [one.read_text() for one in foreign] == ["not ours"] * 2
