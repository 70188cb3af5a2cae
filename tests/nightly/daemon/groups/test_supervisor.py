"""A group that fails comes back; one that is stopped does not.

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


async def test_a_consumer_that_ends_by_itself_is_a_failure() -> None:
    """Nothing may end silently."""
    build = Factory()
    async with supervised(build, rest=0.05) as (group, _):
        await build.made[0].running.wait()
        build.made[0].end()
        await eventually(lambda: group.snapshot().state == "failed", "the end is noticed")
        assert "unexpectedly" in (group.snapshot().failure or "")


async def test_a_consumer_that_cannot_be_built_again_is_tried_again() -> None:
    """Such as a handler whose constructor needs a database that is away."""
    build = Factory()
    async with supervised(build) as (group, _):
        await build.made[0].running.wait()
        build.error = OSError("database is away")
        build.made[0].fail(ValueError())
        await eventually(lambda: group.snapshot().failure == "OSError: database is away", "the newer reason is shown")
        build.error = None
        await eventually(lambda: group.snapshot().state == "running", "it runs again")


async def test_stop_while_resting_ends_at_once() -> None:
    """A failed group does not hold up the end."""
    build = Factory()
    async with supervised(build, rest=1000) as (group, running):
        await build.made[0].running.wait()
        build.made[0].fail(ValueError())
        await eventually(lambda: group.snapshot().state == "failed", "the failure is shown")
        group.stop()
        await asyncio.wait_for(running, 25)


async def test_a_group_that_is_cancelled_by_its_own_code_comes_back() -> None:
    """Nobody asked for its end, so it is a failure like any other."""

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
        await eventually(lambda: len(made) == 2, "it is made anew")


async def test_a_restart_drains_the_consumer_and_continues_with_the_next_one() -> None:
    """With its pauses and counters; a failed group does not wait for its rest."""
    build, later = Factory(), Factory()
    async with supervised(build, rest=60) as (group, _):
        await build.made[0].running.wait()
        group.pause(PauseScope("orders"))
        build.made[0].received = 7
        build.made[0].drained.clear()
        following = later()
        restarting = asyncio.create_task(group.restart(following))
        await eventually(lambda: build.made[0].running.is_set(), "it is asked to stop")
        assert not following.running.is_set(), "the old one still drains"
        build.made[0].drained.set()
        await restarting
        await following.running.wait()
        assert following.pauses.scopes == (PauseScope("orders"),)
        assert group.snapshot().topics[0].received == 7
        following.fail(ValueError())
        await eventually(lambda: group.failure, "the new one fails")
        await group.restart(next_one := later())
        await next_one.running.wait()
        assert len(build.made) == 1
        group.stop()


async def test_hurry_cuts_the_drain_short() -> None:
    """What the consumer is told, it does."""
    build = Factory()
    async with supervised(build) as (group, running):
        await build.made[0].running.wait()
        build.made[0].drained.clear()
        group.stop()
        group.force_stop()
        await running
        assert build.made[0].hurried


async def test_a_consumer_that_does_not_end_is_hurried_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process must end, even if a consumer has a fault."""
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
    """The daemon may be stopped while `rmqd restart` imports the new code; its end waits for the restart."""
    build = Factory()
    async with supervised(build) as (group, running):
        await build.made[0].running.wait()
        group.stop()
        await running
        following = FakeConsumer("mailer")
        await asyncio.wait_for(group.restart(following), WAIT_SECONDS)
        assert following.ended
