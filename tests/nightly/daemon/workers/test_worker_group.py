"""Restarted groups in fake worker processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from rmqd.config.model.root_model import RootConfig
from rmqd.daemon.groups.group_engine import ProcessSnapshot, WorkerReport
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor, WorkerShare
from rmqd.daemon.workers.worker_group import WorkerGroup
from rmqd.daemon.workers.worker_pool import WorkerProcess
from rmqd.errors import ConfigError
from rmqd.plugins.model_options import consumer_options
from rmqd.runtime.child_process import ChildGoneError, ChildNotUsableError
from rmqd.runtime.clock import SystemClock
from tests.config.configs import config
from tests.daemon.fakes import FakeEngine, client_snapshot, group_snapshot
from tests.waiting import WAIT_SECONDS, eventually

DELAYS = LoopMonitor(SystemClock()).snapshot()


@dataclass
class Workers:
    """All started processes. New processes cannot build the groups in `refused`."""

    started: list[FakeWorker] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    imported: asyncio.Event = field(default_factory=asyncio.Event)
    """Imports end once it is set."""

    async def begin(self, *_command: str) -> FakeWorker:
        self.started.append(FakeWorker(self))
        return self.started[-1]

    def last(self, group: str) -> FakeWorker:
        """The newest process of a group."""
        return [one for one in self.started if one.group == group][-1]


class FakeWorker(WorkerProcess):
    """A worker without a process."""

    def __init__(self, workers: Workers) -> None:
        self.pid = 4711
        self.last_snapshot = None
        self.group = ""
        self.received = 0
        self.asked: list[tuple[str, Any]] = []
        self.reading: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._workers = workers

    def __del__(self) -> None:
        """A fake has no files to close."""

    async def ask(self, action: str, argument: object = None) -> object:
        self.asked.append((action, argument))
        if action == "build":
            (self.group,) = argument.config.groups  # type: ignore[attr-defined]
            await eventually(lambda: self._workers.imported.is_set() or self.reading.done(), "the import ends")
            if self.reading.done():
                raise ChildGoneError("killed")
            if self.group in self._workers.refused:
                raise ChildNotUsableError(f"{self.group} is refused")
        if action == "snapshot":
            group = group_snapshot(self.group, received=self.received)
            self.last_snapshot = WorkerReport(ProcessSnapshot(None, self.pid, client_snapshot(), (group,), DELAYS))
        return self.last_snapshot

    def post(self, action: str, argument: object = None) -> None:
        if action in ("stop", "force_stop") and not self.reading.done():
            self.reading.set_result(0)

    def kill(self) -> None:
        if not self.reading.done():
            self.reading.set_result(-9)

    async def dispose(self) -> None:
        """A fake has no process to end."""


@asynccontextmanager
async def restarted(
    monkeypatch: pytest.MonkeyPatch, settings: RootConfig
) -> AsyncIterator[tuple[LocalGroups, Workers]]:
    """All groups of a configuration, after `rmqd restart`."""
    workers, clock = Workers(), SystemClock()
    workers.imported.set()
    monkeypatch.setattr(WorkerProcess, "begin", workers.begin)
    groups = LocalGroups(settings, FakeEngine(), clock, LoopMonitor(clock))
    task = asyncio.create_task(groups.run())
    await groups.started(5)
    for name in groups.names:
        await groups.restart(name)
    try:
        yield groups, workers
    finally:
        groups.force_stop()
        await task


async def test_a_reload_during_the_import_is_applied_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reload does not wait until the group has imported its code."""
    before, after = config("mailer"), config("mailer", changes={"mailer": {"shutdown_timeout": "7s"}})
    workers = Workers()
    monkeypatch.setattr(WorkerProcess, "begin", workers.begin)
    group = WorkerGroup("mailer", consumer_options(before, "mailer"), before, WorkerShare(), lambda _: None)
    running = asyncio.create_task(group.run())
    await eventually(lambda: bool(workers.started) and bool(workers.started[0].group), "the worker imports the code")
    await group.apply(after)
    workers.imported.set()
    applied = ("apply", after.of_group("mailer"))
    await eventually(lambda: applied in workers.last("mailer").asked, "the worker has the new configuration")
    group.stop()
    await asyncio.wait_for(running, WAIT_SECONDS)


async def test_each_status_has_current_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    async with restarted(monkeypatch, config("mailer")) as (groups, workers):
        for received in (3, 4):
            workers.last("mailer").received = received
            (group,) = (await groups.view()).processes[0].groups
            assert group.topics[0].received == received


FAR_CLIENT = {"nameserver": "127.0.0.1:2", "client": {"namespace": "ns"}}
TWO = {"clusters": {"near": {"nameserver": "127.0.0.1:1"}, "far": FAR_CLIENT}}


async def test_a_reload_moves_a_restarted_group_to_another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group keeps its counters in the new process."""
    near, far = ({"mailer": {"cluster": name}} for name in ("near", "far"))
    async with restarted(monkeypatch, config("mailer", changes=near, **TWO)) as (groups, workers):
        workers.last("mailer").received = 3
        await groups.view()
        moved = config("mailer", changes=far, **TWO)
        assert (await groups.apply(moved)).restarted == ("mailer",)
        assert len(workers.started) == 2
        await eventually(lambda: ("run", ()) in workers.last("mailer").asked, "the group runs")
        (group,) = (await groups.view()).processes[0].groups
        assert (group.cluster, group.topics[0].received) == ("far", 3)


async def test_a_reload_refused_by_one_restarted_group_changes_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async with restarted(monkeypatch, config("mailer", "audit")) as (groups, workers):
        before = {name: workers.last(name) for name in groups.names}
        workers.refused.add("audit")
        batch = {"consume_message_batch_max_size": 7}
        with pytest.raises(ConfigError, match="audit is refused"):
            await groups.apply(config("mailer", "audit", changes={"mailer": batch, "audit": batch}))
        for worker in before.values():
            assert not worker.reading.done()
            assert "apply" not in [action for action, _ in worker.asked]
        assert (await groups.apply(config("mailer", "audit"))).unchanged == ("mailer", "audit")


async def test_a_stop_ends_an_import_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with restarted(monkeypatch, config("mailer")) as (groups, workers):
        workers.imported.clear()
        restart = asyncio.create_task(groups.restart("mailer"))
        await eventually(lambda: len(workers.started) == 2 and workers.started[1].group, "the new code is imported")
        groups.stop()
        with pytest.raises(ConfigError, match="the group was stopped during its handler's import"):
            await asyncio.wait_for(restart, WAIT_SECONDS)


async def test_a_stop_during_a_reload_starts_no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import may hang, and `stop` is called only once."""
    async with restarted(monkeypatch, config("mailer")) as (groups, workers):
        workers.imported.clear()

        async def stop(*_: object) -> None:
            groups.stop()

        monkeypatch.setattr(FakeEngine, "check_filters", stop)
        reload = groups.apply(config("mailer", changes={"mailer": {"consume_message_batch_max_size": 7}}))
        with pytest.raises(ConfigError, match="the daemon is stopping"):
            await asyncio.wait_for(reload, WAIT_SECONDS)
