"""A restarted group in its worker process, which does as the test says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd.daemon.groups.supervisor import WorkerShare
from rmqd.daemon.workers.worker_group import WorkerGroup
from rmqd.daemon.workers.worker_pool import WorkerProcess
from rmqd.plugins.model_options import consumer_options
from tests.config.configs import config
from tests.waiting import WAIT_SECONDS, eventually


class SlowWorker(WorkerProcess):
    """Imports its code until `imported` is set."""

    def __init__(self) -> None:
        self.pid = 4711
        self.last_snapshot = None
        self.imported = asyncio.Event()
        self.asked: list[tuple[str, Any]] = []
        self.reading: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def __del__(self) -> None:
        """It has no files."""

    async def ask(self, action: str, argument: object = None) -> None:
        self.asked.append((action, argument))
        if action == "build":
            await self.imported.wait()

    def post(self, action: str, argument: object = None) -> None:
        if action == "stop":
            self.reading.set_result(0)

    async def dispose(self) -> None:
        """It has no process."""


async def test_a_reload_during_the_import_is_applied_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group imports its code again also after a failure, and a reload does not wait for that."""
    before, after = config("mailer"), config("mailer", changes={"mailer": {"shutdown_timeout": "7s"}})
    worker = SlowWorker()

    async def begin(*_command: str) -> SlowWorker:
        return worker

    monkeypatch.setattr(WorkerProcess, "begin", begin)
    group = WorkerGroup("mailer", consumer_options(before, "mailer"), before, WorkerShare(), lambda _: None)
    running = asyncio.create_task(group.run())
    await eventually(lambda: bool(worker.asked), "the worker is asked to import its code")
    await group.apply(after)
    worker.imported.set()
    applied = ("apply", after.of_group("mailer"))
    await eventually(lambda: applied in worker.asked, "the worker has the new configuration")
    group.stop()
    await asyncio.wait_for(running, WAIT_SECONDS)
