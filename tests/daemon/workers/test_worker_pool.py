"""The workers of a pool run only with the current configuration and the current code."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import structlog

from rmqd.daemon.workers.worker_pool import WorkerPool
from rmqd.runtime.clock import SystemClock
from tests.config.configuration import load
from tests.waiting import eventually

CONFIG = "nameserver: a:1\ngroups:\n  mailer:\n    subscriptions: {orders: '*'}\n    handler: {plugin: log}\n"


class Worker:
    """A fake worker process. The first worker is slow to build its groups."""

    begun: ClassVar[list[Any]] = []
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
        if action == "build" and self is self.begun[0]:
            await self.is_built.wait()

    def post(self, action: str) -> None:
        self.asked.append(action)
        self.reading.set_result(0)

    async def refresh(self, _: object) -> None: ...
    async def dispose(self) -> None: ...
    def thread_stacks(self) -> str:
        return ""


async def test_a_restart_reaches_a_worker_that_imports_its_handlers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The worker may have imported the old code, and would run it until the next restart."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rmqd.daemon.workers.worker_pool.WorkerProcess", Worker)
    monkeypatch.setattr(Worker, "begun", [])
    pool = WorkerPool(load(CONFIG), 1, SystemClock())
    running = asyncio.create_task(pool.run())
    await eventually(lambda: Worker.begun and Worker.begun[0].asked, "the first worker imports its handlers")

    await pool.restart("mailer")
    Worker.begun[0].is_built.set()
    await eventually(lambda: "run" in Worker.begun[-1].asked, "a worker runs")
    pool.stop()
    await running

    assert [one.asked for one in Worker.begun] == [["build"], ["build", "check"], ["build", "run", "stop"]]
