"""`jsonl`: what is acknowledged is on the disk, whole lines only, whatever happens in between."""

from __future__ import annotations

import multiprocessing
import os
import signal
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
def test_processes_share_the_file_and_one_may_be_killed_at_any_moment(tmp_path: Path) -> None:
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
        for process in writers:  # one after the other: the others go on
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
    finally:
        for process in writers:
            process.kill()
            process.join()
    make_handler(path).stop()  # the next writer cuts what the last one left

    written = set(bodies_in(*all_files(path)))
    assert {body for ledger in ledgers for body in ledger.read_text().split()} <= written
