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
        """Where it is."""

        path: Path

    def __init__(self, options: Options) -> None:
        self._path = options.path

    def start(self) -> None:
        self.database = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)

    def stop(self) -> None:
        self.database.close()


class Upserts(_Writes):
    """Has one row for each order, whatever dies when."""

    def handle(self, batch: Batch) -> None:
        for message in batch:
            self.database.execute("insert into orders values (?) on conflict do nothing", (message.keys,))


class UpsertsAsync(Upserts):
    async def handle(self, batch: Batch) -> None:  # type: ignore[override]
        super().handle(batch)


class RemembersInMemory(_Writes):
    """Knows by itself what it has written, until it dies."""

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
    """Gathers what it is to write, and has acknowledged it by then."""

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
    """Notes an order as done before it does it, in two transactions."""

    def handle(self, batch: Batch) -> None:
        for message in batch:
            fresh = self.database.execute("insert into orders values (?) on conflict do nothing", (message.keys,))
            if fresh.rowcount:
                self.database.execute("insert into mails values (?)", (message.keys,))


class Crunches(Upserts):
    """Leaves some of its work to processes that it forks."""

    def start(self) -> None:
        super().start()
        self.lock = self._path.with_name("lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_SH)  # the forked hold it, too
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
        """And what tells the time."""

        now: Any


def send_mail(to: str | None) -> None:
    """What a test has to replace."""
    with open(os.environ["MAILS"], "a") as mails:
        mails.write(f"{to}\n")


class Mails(Upserts):
    """Has a row for each order, and sends a mail each time."""

    def handle(self, batch: Batch) -> None:
        super().handle(batch)
        for message in batch:
            send_mail(message.keys)


@pytest.fixture
def run(rocketmq: RocketMQ, run_handler: Callable[..., RunResult], tmp_path: Path) -> Callable[..., RunResult]:
    """Runs a handler in chaos, over four orders in two queues, with a database that is looked at and emptied."""
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
def test_what_is_safe_to_do_again_passes(run: Callable[..., RunResult], handler: Any) -> None:
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
def test_what_a_kill_does_not_leave_as_it_should_is_caught(
    run: Callable[..., RunResult], handler: Any, died: str, differs: str
) -> None:
    """With where it died, and that the message came again."""
    with pytest.raises(NotRepeatableError) as caught:
        run(handler)
    text = str(caught.value)
    assert f"killed (kill -9) {died}" in text
    assert differs in text
    assert "is lost with its process" in text


def test_what_no_other_process_finds_is_not_killed(run: Callable[..., RunResult]) -> None:
    """A class of a test's own: without a kill nothing is wrong with it."""

    class Local(RemembersInMemory):
        pass

    with pytest.warns(ChaosSeesLessWarning, match="another process cannot import it"):
        assert len(run(Local).acked) == 4


def test_what_cannot_be_pickled_is_not_killed(run: Callable[..., RunResult]) -> None:
    with pytest.warns(ChaosSeesLessWarning, match="options cannot be sent to another process: .*lambda"):
        assert len(run(TellsTime, now=lambda: 5).acked) == 4


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12, at each fork
def test_what_it_has_forked_dies_with_it(run: Callable[..., RunResult], tmp_path: Path) -> None:
    """And the test does not wait for ever for what the forked hold open."""
    assert len(run(Crunches).acked) == 4
    waits = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)"
    subprocess.run([sys.executable, "-c", waits, tmp_path / "lock"], check=True, timeout=20)


def test_without_being_asked_no_process_runs_in_which_a_mock_of_the_test_does_not_hold(
    run: Callable[..., RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mails = tmp_path / "mails"
    monkeypatch.setenv("MAILS", str(mails))
    with monkeypatch.context() as patched:
        patched.setattr(f"{__name__}.send_mail", sent := mock.Mock())
        run(Mails, chaos=True)
    assert sent.call_count > 4
    assert not mails.exists()
