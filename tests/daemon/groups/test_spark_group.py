"""A group on Spark in the daemon, with a fake driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from rmqd.daemon.groups.spark_group import DriverSpec, SparkDriverError, SparkDriverProcess, SparkGroup
from rmqd.errors import ConfigError
from rmqd.plugins.model_options import options_of_group
from rmqd.runtime.child_process import ChildGoneError
from tests.config.configs import config
from tests.daemon.fakes import group_snapshot
from tests.waiting import eventually


class FakeDriver(SparkDriverProcess):
    """A driver that responds at once unless it is `hung`. The test ends it."""

    def __init__(self) -> None:
        self.pid = 4711
        self.last_snapshot: GroupSnapshot | None = None
        self.told: list[tuple[str, Any]] = []
        self.orders: list[DriverSpec] = []
        self.refusal: Exception | None = None
        self.killed = False
        self.hung = False
        self.asked = 0
        self.reading: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def __del__(self) -> None:
        """A fake has no files to close."""

    async def it(self) -> FakeDriver:
        """Return this driver, as the factory of a SparkGroup."""
        return self

    def leave(self, exit_code: int, last: GroupSnapshot | None = None) -> None:
        """End with this exit code, after a last snapshot."""
        self.last_snapshot = last or self.last_snapshot
        self.reading.set_result(exit_code)

    async def ask(self, action: str, argument: object = None) -> object:
        """Record specifications, and count requests for a snapshot."""
        if self.reading.done():
            raise ChildGoneError("gone")
        if isinstance(argument, DriverSpec):
            if self.refusal is not None:
                raise self.refusal
            self.orders.append(argument)
        if self.hung:
            await asyncio.Event().wait()
        self.asked += action == "snapshot"
        return None

    def post(self, action: str, argument: object = None) -> None:
        """Record the message."""
        self.told.append((action, argument))

    async def dispose(self) -> None:
        """Record the kill, and end with exit code -9 if still running."""
        self.killed = True
        if not self.reading.done():
            self.reading.set_result(-9)


def told(state: str = "running", **changes: Any) -> GroupSnapshot:
    """A snapshot as a driver sends it."""
    return replace(group_snapshot(), engine="spark", state=state, **changes)


@asynccontextmanager
async def running(
    driver: FakeDriver, trigger: str = "", silent_seconds: float = 30.0
) -> AsyncIterator[tuple[SparkGroup, asyncio.Task[None]]]:
    settings = config("audit", "mailer", changes={"mailer": {"engine": "spark", "spark": {"trigger": trigger}}})
    options = options_of_group(settings.groups["mailer"], "mailer", "/nowhere")
    group = SparkGroup("mailer", options, settings, driver.it, silent_seconds)
    task = asyncio.create_task(group.run())
    try:
        yield group, task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, SparkDriverError, ConfigError):
            await task


async def test_the_driver_gets_only_its_group_and_is_polled_for_snapshots() -> None:
    """Before the first snapshot, the group is starting and has all its counters."""
    driver = FakeDriver()
    async with running(driver) as (group, _):
        before = group.snapshot()
        assert (before.state, before.engine, before.ready) == ("starting", "spark", False)
        assert before.topics[0].handled["acked"] == 0
        await eventually(lambda: driver.asked > 0, "the driver is polled")
        driver.last_snapshot = told(client_id="10.0.0.1@spark-1")
        assert list(driver.orders[0].config.groups) == ["mailer"]
        assert (group.snapshot().state, group.snapshot().client_id) == ("running", "10.0.0.1@spark-1")
