"""The workers of a pool run only with the current configuration and the current code."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import structlog

from rmqd.daemon.workers.worker_pool import WorkerPool
from rmqd.errors import ConfigError
from rmqd.runtime.child_process import ChildGoneError
from rmqd.runtime.clock import SystemClock
from tests.config.configuration import load
from tests.waiting import WAIT_SECONDS, eventually

CONFIG = "nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: {orders: '*'}\n    handler: {plugin: log}\n"


class Worker:
    """A fake worker process. One worker is slow to build its groups."""

    begun: ClassVar[list[Any]] = []
    slow: ClassVar[int] = 0  # index of the worker that is slow
    pid, last_snapshot, is_silent = 1, None, False

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.is_built = asyncio.Event()
        self.reading = asyncio.get_running_loop().create_future()
        self.log = structlog.get_logger()

    @classmethod
    async def begin(cls, *_: str) -> Self:
        worker = cls()
        cls.begun.append(worker)
        return worker

    async def ask(self, action: str, _: object = None) -> None:
        self.asked.append(action)
        if action == "build" and self.begun.index(self) == self.slow:
            await self.is_built.wait()
        if "kill" in self.asked:
            raise ChildGoneError("killed")

    def post(self, action: str) -> None:
        self.asked.append(action)
        self.reading.set_result(0)

    def kill(self) -> None:
        self.asked.append("kill")
        self.is_built.set()

    async def refresh(self, _: object) -> None: ...
    async def dispose(self) -> None: ...
    def thread_stacks(self) -> str:
        return ""


def fake_pool(monkeypatch: pytest.MonkeyPatch, folder: Path, slow: int = 0) -> WorkerPool:
    """A pool of one fake worker."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("rmqd.daemon.workers.worker_pool.WorkerProcess", Worker)
    monkeypatch.setattr(Worker, "begun", [])
    monkeypatch.setattr(Worker, "slow", slow)
    return WorkerPool(load(CONFIG), 1, SystemClock())


async def test_a_restart_reaches_a_worker_that_imports_its_handlers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The worker may have imported the old code, and would run it until the next restart."""
    pool = fake_pool(monkeypatch, tmp_path)
    running = asyncio.create_task(pool.run())
    await eventually(lambda: Worker.begun and Worker.begun[0].asked, "the first worker imports its handlers")

    await pool.restart("mailer")
    Worker.begun[0].is_built.set()
    await eventually(lambda: "run" in Worker.begun[-1].asked, "a worker runs")
    pool.stop()
    await running

    assert [one.asked for one in Worker.begun] == [["build"], ["build", "check"], ["build", "run", "stop"]]


async def test_a_stop_ends_imports_that_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first import of a worker, and the import that checks the code for a restart."""
    pool = fake_pool(monkeypatch, tmp_path)
    running = asyncio.create_task(pool.run())
    await eventually(lambda: Worker.begun and Worker.begun[0].asked, "the worker imports its handlers")
    pool.stop()
    await asyncio.wait_for(running, WAIT_SECONDS)

    pool = fake_pool(monkeypatch, tmp_path, slow=1)
    running = asyncio.create_task(pool.run())
    await eventually(lambda: Worker.begun and "run" in Worker.begun[0].asked, "the worker runs")
    restart = asyncio.create_task(pool.restart("mailer"))
    await eventually(lambda: len(Worker.begun) > 1 and Worker.begun[1].asked, "another worker imports the new code")
    pool.stop()
    with pytest.raises(ConfigError, match="the daemon is stopping"):
        await asyncio.wait_for(restart, WAIT_SECONDS)
    await running
