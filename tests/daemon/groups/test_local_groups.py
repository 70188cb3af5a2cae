"""The groups of a process: started together, reloaded separately, drained in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rmqd.config.model.root_model import RootConfig
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from rmqd.daemon.groups.group_engine import UnknownGroupError
from rmqd.daemon.groups.local_groups import LocalGroups
from rmqd.daemon.groups.supervisor import LoopMonitor, WorkerShare, readiness
from rmqd.errors import ConfigError
from rmqd.runtime.clock import SystemClock
from tests.config.configs import config
from tests.daemon.fakes import FakeEngine
from tests.waiting import eventually


@asynccontextmanager
async def running(
    settings: RootConfig, engine: FakeEngine, share: WorkerShare | None = None
) -> AsyncIterator[tuple[LocalGroups, asyncio.Task[None]]]:
    clock = SystemClock()
    groups = LocalGroups(settings, engine, clock, LoopMonitor(clock), share)
    task = asyncio.create_task(groups.run())
    await groups.started(5)
    try:
        yield groups, task
    finally:
        groups.force_stop()
        await task


def by_name(groups: LocalGroups) -> dict[str, GroupSnapshot]:
    """The snapshot of each group."""
    return {group.name: group for group in groups.snapshot().groups}


async def test_all_groups_start_and_are_ready() -> None:
    """They share one client."""
    engine = FakeEngine()
    async with running(config("mailer", "audit"), engine) as (groups, _):
        assert [group.state for group in groups.snapshot().groups] == ["running", "running"]
        assert len(engine.clients) == 1
        assert engine.clients[0].running
        assert all(check.ok for check in readiness(await groups.view(), stopping=False))


SECURED: dict[str, Any] = {"client": {"access_key": "a", "secret_key": "b"}}


async def test_new_keys_are_applied_to_the_running_client() -> None:
    """The consumer and the client are not replaced."""
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        new = config("mailer", **SECURED)
        changes = await groups.apply(new)
        assert changes.unchanged == ("mailer",)
        assert [client.secured for client in engine.clients] == [[new.client_options()]]
        assert len(engine.consumers["mailer"]) == 1
        await groups.apply(new)
        assert len(engine.clients[0].secured) == 1


async def test_stop_drains_in_parallel_and_ends_the_client_last() -> None:
    """The client is needed until the last group has committed its offsets."""
    engine = FakeEngine()
    async with running(config("mailer", "audit"), engine) as (groups, task):
        for name in ("mailer", "audit"):
            engine.last(name).drained.clear()
        groups.stop()
        engine.last("audit").drained.set()
        await eventually(lambda: engine.last("audit").ended, "the fast group ends")
        assert not engine.last("mailer").ended
        assert engine.clients[0].running
        assert not readiness(await groups.view(), groups.stopping)[0].ok
        engine.last("mailer").drained.set()
        await task
        assert not engine.clients[0].running


async def test_a_reload_restarts_only_changed_groups() -> None:
    """The unchanged group keeps its consumer."""
    engine = FakeEngine()
    async with running(config("mailer", "audit", "old"), engine) as (groups, _):
        changed = config("mailer", "audit", "new", changes={"audit": {"consume_message_batch_max_size": 10}})
        report = await groups.apply(changed)
        assert (report.unchanged, report.restarted) == (("mailer",), ("audit",))
        assert (report.started, report.stopped) == (("new",), ("old",))
        await groups.started(5)
        assert list(by_name(groups)) == ["mailer", "audit", "new"]
        assert len(engine.consumers["mailer"]) == 1
        assert not engine.last("mailer").ended
        assert [consumer.ended for consumer in engine.consumers["audit"]] == [True, False]
        assert engine.last("old").ended
        assert engine.options["audit"].consume_message_batch_max_size == 10


async def test_options_that_can_change_live_do_not_restart_a_group() -> None:
    """Filter, rate limit and concurrency are passed to the running consumer and to its successors."""
    engine = FakeEngine()
    async with running(config("mailer", "audit"), engine) as (groups, _):
        audit: dict[str, object] = {"subscriptions": {"orders": "paid"}, "pull_rate_limit": 10}
        audit |= {"shutdown_timeout": "40s", "handler": {"plugin": "log", "concurrency": 3}}
        report = await groups.apply(config("mailer", "audit", changes={"audit": audit}))
        assert (report.unchanged, report.updated, report.restarted) == (("mailer",), ("audit",), ())
        (consumer,) = engine.consumers["audit"]
        (options,) = consumer.changes
        assert options.subscriptions["orders"].expression == "paid"
        assert (options.pull_rate_limit, options.concurrency) == (10, 3)
        assert groups.longest_drain_seconds == 40
        consumer.fail(OSError("away"))
        await eventually(lambda: len(engine.consumers["audit"]) == 2, "a successor is built")
        assert engine.options["audit"] == options


async def test_a_changed_group_is_drained_before_its_successor_starts() -> None:
    """Two members of one process would fight over the queues."""
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        engine.last("mailer").drained.clear()
        reload = asyncio.create_task(
            groups.apply(config("mailer", changes={"mailer": {"consume_message_batch_max_size": 8}}))
        )
        await eventually(lambda: len(engine.consumers["mailer"]) == 2, "the successor is built")
        old, new = engine.consumers["mailer"]
        assert not new.running.is_set()
        old.drained.set()
        await reload
        await eventually(new.running.is_set, "the successor runs")


async def test_a_reload_that_cannot_be_built_changes_nothing() -> None:
    """The error has every problem."""
    engine = FakeEngine(refused_plugins={"nope"})
    async with running(config("mailer", "audit"), engine) as (groups, _):
        nope = {"handler": {"plugin": "nope"}}
        with pytest.raises(ConfigError) as refused:
            await groups.apply(config("mailer", "new", "newer", changes={"new": nope, "newer": nope}))
        assert len(refused.value.problems) == 2
        assert list(by_name(groups)) == ["mailer", "audit"]
        assert not engine.last("audit").ended
        assert (await groups.apply(config("mailer", "audit"))).unchanged == ("mailer", "audit")


async def test_counters_and_pauses_survive_a_reload() -> None:
    """A changed setting must neither reset counters nor end an operator's pause."""
    engine = FakeEngine()
    async with running(config("mailer"), engine) as (groups, _):
        engine.last("mailer").received = 7
        await groups.pause("mailer")
        await groups.apply(config("mailer", changes={"mailer": {"consume_message_batch_max_size": 8}}))
        assert engine.last("mailer").paused
        assert by_name(groups)["mailer"].topics[0].received == 7
        await groups.resume("mailer")
        assert not engine.last("mailer").paused


async def test_the_error_for_an_unknown_group_lists_the_known_groups() -> None:
    async with running(config("mailer", "audit"), FakeEngine()) as (groups, _):
        with pytest.raises(UnknownGroupError, match="unknown group shipping; expected one of mailer, audit"):
            await groups.pause("shipping")
