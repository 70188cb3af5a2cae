"""Restarts of failed groups, and the end of stopped groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rmqd.consumer.pauses import WHOLE_GROUP, PauseScope
from rmqd.daemon.groups.supervisor import Backoff, GroupSupervisor
from rmqd.runtime.clock import SystemClock
from tests.daemon.fakes import FakeConsumer
from tests.waiting import eventually


class Factory:
    """A factory that keeps its consumers."""

    def __init__(self) -> None:
        self.made: list[FakeConsumer] = []
        self.error: Exception | None = None

    def __call__(self) -> FakeConsumer:
        if self.error is not None:
            raise self.error
        self.made.append(FakeConsumer("mailer"))
        return self.made[-1]


@asynccontextmanager
async def supervised(
    build: Callable[[], FakeConsumer], *, shutdown_timeout: float = 5.0, rest: float = 0.001, healthy: float = 60.0
) -> AsyncIterator[tuple[GroupSupervisor, asyncio.Task[None]]]:
    group = GroupSupervisor("mailer", build, shutdown_timeout, SystemClock(), Backoff(rest, 8 * rest, healthy))
    running = asyncio.create_task(group.run())
    try:
        yield group, running
    finally:
        group.force_stop()
        await running


def test_backoff_doubles_up_to_its_limit_and_starts_again_after_a_healthy_time() -> None:
    """1, 2, 4 … 60 seconds; a healthy minute resets it."""
    backoff = Backoff()
    assert [backoff.next_delay_seconds(0.1) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff.next_delay_seconds(61) == 1
    assert backoff.next_delay_seconds(1) == 2


async def test_a_failed_group_is_shown_as_failed_with_its_reason_and_restarted() -> None:
    """The state is `failed` during the backoff. Then a new consumer runs."""
    build = Factory()
    async with supervised(build, rest=0.05) as (group, _):
        await build.made[0].running.wait()
        build.made[0].fail(ValueError("no such table"))
        await eventually(lambda: group.snapshot().state == "failed", "the failure is shown")
        shown = group.snapshot()
        assert (shown.failure, shown.ready) == ("ValueError: no such table", False)
        assert shown.not_ready_reason == "ValueError: no such table"
        await eventually(lambda: len(build.made) == 2, "a new consumer")
        await eventually(lambda: group.snapshot().state == "running", "the group runs again")
        assert group.snapshot().failure is None


async def test_counters_never_fall_after_a_restart() -> None:
    """The counts of the failed consumer are added to its successor's."""
    build = Factory()
    async with supervised(build) as (group, _):
        await build.made[0].running.wait()
        build.made[0].received = 7
        build.made[0].fail(ValueError())
        await eventually(lambda: len(build.made) == 2, "a new consumer")
        build.made[1].received = 5
        assert group.snapshot().topics[0].received == 12
        build.made[1].fail(ValueError())
        await eventually(lambda: len(build.made) == 3, "a third consumer")
        assert group.snapshot().topics[0].received == 12


async def test_stop_drains() -> None:
    """The supervisor ends when the consumer has drained, and not before."""
    build = Factory()
    async with supervised(build) as (group, running):
        consumer = build.made[0]
        await consumer.running.wait()
        consumer.drained.clear()
        group.stop()
        done, _ = await asyncio.wait({running}, timeout=0.05)
        assert not done
        consumer.drained.set()
        await running
        assert not consumer.hurried


async def test_a_pause_survives_a_restart() -> None:
    """A failure does not end an operator's pause."""
    build = Factory()
    async with supervised(build) as (group, _):
        await build.made[0].running.wait()
        group.pause()
        group.pause(PauseScope("orders"))
        build.made[0].fail(ValueError())
        await eventually(lambda: len(build.made) == 2, "a new consumer")
        assert build.made[1].pauses.scopes == (WHOLE_GROUP, PauseScope("orders"))
        group.resume()
        assert not build.made[1].pauses.scopes
