"""`run_handler(..., chaos="kills")`: handlers whose effect is repeatable until their process dies."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pydantic import BaseModel

from rmqd import Batch
from rmqd.testing import ChaosSeesLessWarning, NotRepeatableError, RocketMQ, RunResult

pytestmark = [pytest.mark.process, pytest.mark.slow]  # each kill takes a process


class _Writes:
    """Writes to a database; each statement is a transaction."""

    class Options(BaseModel):
        """The path of the database."""

        path: Path

    def __init__(self, options: Options) -> None:
        self._path = options.path

    def start(self) -> None:
        self.database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)

    def stop(self) -> None:
        self.database.close()


class Upserts(_Writes):
    """Keeps one row for each order, whenever a process dies."""

    def handle(self, batch: Batch) -> None:
        for message in batch:
            self.database.execute("insert into orders values (?) on conflict do nothing", (message.keys,))


class UpsertsAsync(Upserts):
    async def handle(self, batch: Batch) -> None:  # type: ignore[override]
        super().handle(batch)


class RemembersInMemory(_Writes):
    """Remembers written orders in memory, until its process dies."""

    def start(self) -> None:
        super().start()
        self.seen: set[str | None] = set()

    def handle(self, batch: Batch) -> None:
        for message in batch:
            if message.keys not in self.seen:
                self.database.execute("insert into mails values (?)", (message.keys,))
                self.seen.add(message.keys)


class RemembersAsync(RemembersInMemory):
    async def handle(self, batch: Batch) -> None:  # type: ignore[override]
        super().handle(batch)


class WritesLater(_Writes):
    """Collects rows, and writes them after their messages were acknowledged."""

    def start(self) -> None:
        super().start()
        self.rows: set[str | None] = set()

    def handle(self, batch: Batch) -> None:
        self.rows |= {message.keys for message in batch}

    def stop(self) -> None:
        for row in self.rows:
            self.database.execute("insert into orders values (?) on conflict do nothing", (row,))
        super().stop()


class MarksFirst(_Writes):
    """Marks an order as done before its effect, in two transactions."""

    def handle(self, batch: Batch) -> None:
        for message in batch:
            fresh = self.database.execute("insert into orders values (?) on conflict do nothing", (message.keys,))
            if fresh.rowcount:
                self.database.execute("insert into mails values (?)", (message.keys,))


class Crunches(Upserts):
    """Does some of its work in forked processes."""

    def start(self) -> None:
        super().start()
        self.lock = self._path.with_name("lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_SH)  # forked processes hold it too
        self.pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))

    def stop(self) -> None:
        self.pool.shutdown()
        self.lock.close()
        super().stop()

    def handle(self, batch: Batch) -> None:
        self.pool.submit(len, batch[0].body).result()
        super().handle(batch)


class TellsTime(Upserts):
    class Options(_Writes.Options):
        """The path and a clock."""

        now: Any


def send_mail(to: str | None) -> None:
    """An effect that tests have to replace."""
    with open(os.environ["MAILS"], "a") as mails:
        mails.write(f"{to}\n")


class Mails(Upserts):
    """Keeps one row for each order, and sends a mail at each delivery."""

    def handle(self, batch: Batch) -> None:
        super().handle(batch)
        for message in batch:
            send_mail(message.keys)


@pytest.fixture
def run(rocketmq: RocketMQ, run_handler: Callable[..., RunResult], tmp_path: Path) -> Callable[..., RunResult]:
    """Runs a handler in chaos, with four orders in two queues and a database as its state."""
    rocketmq.create_topic("orders", queues=2)
    for number in range(4):
        rocketmq.send("orders", {"number": number}, keys=f"order-{number}", queue_id=number % 2)
    path = tmp_path / "shop.sqlite3"
    tables = ("orders", "mails")
    with sqlite3.connect(path) as book:
        book.execute("create table orders (id text primary key)")
        book.execute("create table mails (id text)")

    def state() -> dict[str, list[Any]]:
        with sqlite3.connect(path) as book:
            return {table: book.execute(f"select * from {table}").fetchall() for table in tables}

    def reset() -> None:
        with sqlite3.connect(path) as book:
            for table in tables:
                book.execute(f"delete from {table}")

    def call(handler: Any, chaos: bool | str = "kills", **options: Any) -> RunResult:
        return run_handler(
            handler,
            topic="orders",
            group="shop",
            options={"path": str(path), **options},
            chaos=chaos,
            state=state,
            reset=reset,
        )

    return call


@pytest.mark.parametrize("handler", [Upserts, UpsertsAsync])
def test_a_handler_that_is_safe_to_repeat_passes(run: Callable[..., RunResult], handler: Any) -> None:
    assert len(run(handler).acked) == 4


@pytest.mark.parametrize(
    ("handler", "died", "differs"),
    [
        (RemembersInMemory, "after its last line", "is unexpected"),
        (RemembersAsync, "after its last line", "is unexpected"),
        (WritesLater, "after its last line", "is missing"),
        (MarksFirst, "before test_chaos_kills.py:", "is missing"),
    ],
)
def test_a_handler_whose_effect_differs_after_a_kill_is_caught(
    run: Callable[..., RunResult], handler: Any, died: str, differs: str
) -> None:
    """The error says where the process died, and what differs."""
    with pytest.raises(NotRepeatableError) as caught:
        run(handler)
    text = str(caught.value)
    assert f"killed (kill -9) {died}" in text
    assert differs in text
    assert "is lost with its process" in text


def test_a_handler_that_cannot_be_imported_is_not_killed(run: Callable[..., RunResult]) -> None:
    """The class is local to the test. Without a kill it is repeatable."""

    class Local(RemembersInMemory):
        pass

    with pytest.warns(ChaosSeesLessWarning, match="another process cannot import the handler"):
        assert len(run(Local).acked) == 4


def test_a_handler_with_unpicklable_options_is_not_killed(run: Callable[..., RunResult]) -> None:
    with pytest.warns(ChaosSeesLessWarning, match="options cannot be sent to a process: .*lambda"):
        assert len(run(TellsTime, now=lambda: 5).acked) == 4


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # Python 3.12 warns at each fork
def test_forked_processes_die_with_their_killed_parent(run: Callable[..., RunResult], tmp_path: Path) -> None:
    """Otherwise the lock that they hold would never be released."""
    assert len(run(Crunches).acked) == 4
    waits = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"
    subprocess.run([sys.executable, "-c", waits, tmp_path / "lock"], check=True, timeout=20)


def test_without_kills_the_handler_runs_in_the_process_of_the_test_s_mocks(
    run: Callable[..., RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails = tmp_path / "mails"
    monkeypatch.setenv("MAILS", str(mails))
    with monkeypatch.context() as patched:
        patched.setattr(f"{__name__}.send_mail", sent := mock.Mock())
        run(Mails, chaos=True)
    assert sent.call_count > 4
    assert not mails.exists()
