"""Restarts of failed groups, and the end of stopped groups.

The core of these tests is in tests/daemon/groups/test_supervisor.py.
"""

from __future__ import annotations

import asyncio

import pytest

from rmqd.consumer.pauses import PauseScope
from rmqd.daemon.groups import supervisor as module
from tests.daemon.fakes import FakeConsumer
from tests.daemon.groups.test_supervisor import Factory, supervised
from tests.waiting import WAIT_SECONDS, eventually


async def test_an_unexpected_end_of_a_consumer_is_a_failure() -> None:
    build = Factory()
    async with supervised(build, rest=0.05) as (group, _):
        await build.made[0].running.wait()
        build.made[0].end()
        await eventually(lambda: group.snapshot().state == "failed", "the end is reported")
        assert "unexpectedly" in (group.snapshot().failure or "")


async def test_a_consumer_that_cannot_be_rebuilt_is_tried_again() -> None:
    """For example, its handler's constructor needs an unavailable database."""
    build = Factory()
    async with supervised(build) as (group, _):
        await build.made[0].running.wait()
        build.error = OSError("database is away")
        build.made[0].fail(ValueError())
        await eventually(lambda: group.snapshot().failure == "OSError: database is away", "the newer reason is shown")
        build.error = None
        await eventually(lambda: group.snapshot().state == "running", "the group runs again")


async def test_a_stop_during_the_backoff_ends_at_once() -> None:
    """A failed group must not delay the end of the daemon."""
    build = Factory()
    async with supervised(build, rest=1000) as (group, running):
        await build.made[0].running.wait()
        build.made[0].fail(ValueError())
        await eventually(lambda: group.snapshot().state == "failed", "the failure is shown")
        group.stop()
        await asyncio.wait_for(running, 25)


async def test_a_group_that_is_cancelled_by_its_own_code_is_restarted() -> None:
    """The cancellation is a failure, because the group was not stopped."""

    class Cancelled(FakeConsumer):
        async def run(self) -> None:
            if len(made) == 1:
                raise asyncio.CancelledError
            await super().run()

    made: list[FakeConsumer] = []

    def build() -> FakeConsumer:
        made.append(Cancelled("mailer"))
        return made[-1]

    async with supervised(build):
        await eventually(lambda: len(made) == 2, "another consumer is built")


async def test_a_restart_drains_the_consumer_and_continues_with_the_next_one() -> None:
    """The next consumer keeps pauses and counters. A failed group skips its backoff."""
    build, later = Factory(), Factory()
    async with supervised(build, rest=60) as (group, _):
        await build.made[0].running.wait()
        group.pause(PauseScope("orders"))
        build.made[0].received = 7
        build.made[0].drained.clear()
        following = later()
        restarting = asyncio.create_task(group.restart(following))
        await eventually(lambda: build.made[0].running.is_set(), "the consumer runs")
        assert not following.running.is_set(), "the old consumer still drains"
        build.made[0].drained.set()
        await restarting
        await following.running.wait()
        assert following.pauses.scopes == (PauseScope("orders"),)
        assert group.snapshot().topics[0].received == 7
        following.fail(ValueError())
        await eventually(lambda: group.failure, "the new consumer fails")
        await group.restart(next_one := later())
        await next_one.running.wait()
        assert len(build.made) == 1
        group.stop()


async def test_force_stop_ends_the_drain() -> None:
    build = Factory()
    async with supervised(build) as (group, running):
        await build.made[0].running.wait()
        build.made[0].drained.clear()
        group.stop()
        group.force_stop()
        await running
        assert build.made[0].hurried


async def test_a_consumer_that_ignores_a_forced_stop_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A faulty consumer must not keep the process from ending."""
    monkeypatch.setattr(module, "END_GRACE_SECONDS", 0.01)
    monkeypatch.setattr(module, "HURRY_GRACE_SECONDS", 0.01)
    build = Factory()
    async with supervised(build, shutdown_timeout=0.01) as (group, running):
        consumer = build.made[0]
        await consumer.running.wait()
        consumer.drained = asyncio.Event()
        consumer.force_stop = lambda: None  # type: ignore[method-assign]
        group.stop()
        await asyncio.wait_for(running, 25)
        assert consumer.ended


async def test_a_restart_after_the_end_ends_the_following_consumer() -> None:
    """The daemon may be stopped while `rmqd restart` imports the new code. Its end waits for the restart."""
    build = Factory()
    async with supervised(build) as (group, running):
        await build.made[0].running.wait()
        group.stop()
        await running
        following = FakeConsumer("mailer")
        await asyncio.wait_for(group.restart(following), WAIT_SECONDS)
        assert following.ended
