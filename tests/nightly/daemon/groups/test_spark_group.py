"""A group on Spark in the daemon, with a fake driver.

The core of these tests is in tests/daemon/groups/test_spark_group.py.
"""

from __future__ import annotations

import asyncio

import pytest

from rmqd.consumer.pauses import WHOLE_GROUP
from rmqd.daemon.groups.spark_group import SparkDriverError
from rmqd.errors import ConfigError
from tests.daemon.groups.test_spark_group import FakeDriver, running, told
from tests.waiting import eventually


async def test_a_stop_before_the_driver_starts_kills_it_at_once() -> None:
    driver = FakeDriver()
    async with running(driver) as (group, task):
        group.stop()
        await task
        assert driver.orders == []
        assert driver.killed


async def test_a_stop_is_sent_to_a_driver_that_still_builds_its_group() -> None:
    driver = FakeDriver()
    driver.hung = True
    async with running(driver) as (group, _):
        await eventually(lambda: bool(driver.orders), "the driver has its specification")
        group.stop()
        assert driver.told == [("stop", None)]


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [(-9, "was killed by SIGKILL"), (3, "ended with exit code 3"), (0, "without being asked to stop")],
)
async def test_an_unexpected_end_of_the_driver_is_a_failure(exit_code: int, words: str) -> None:
    """The failure makes the supervisor start another driver."""
    driver = FakeDriver()
    driver.last_snapshot = told()
    async with running(driver) as (group, task):
        await eventually(lambda: driver.asked > 0, "it runs")
        driver.leave(exit_code)
        with pytest.raises(SparkDriverError, match=rf"Spark driver \(pid 4711\).*{words}"):
            await task
        assert group.snapshot().queues == ()


async def test_a_group_with_available_now_stays_stopped_after_its_end() -> None:
    """It is not restarted. Its task ends when the group is stopped."""
    driver = FakeDriver()
    async with running(driver, trigger="available_now") as (group, task):
        await eventually(lambda: driver.asked > 0, "it runs")
        driver.leave(0, told("stopped"))
        await eventually(lambda: group.snapshot().state == "stopped", "the group has ended")
        assert not task.done()
        group.stop()
        await task


async def test_the_error_of_a_refused_specification_is_raised() -> None:
    driver = FakeDriver()
    driver.refusal = ConfigError(["groups.mailer.spark.master: nonsense"])
    async with running(driver) as (_, task):
        with pytest.raises(ConfigError, match="nonsense"):
            await task
        assert driver.killed


async def test_a_pause_applies_before_and_after_the_start() -> None:
    driver = FakeDriver()
    async with running(driver) as (group, _):
        group.pause()
        await eventually(lambda: bool(driver.orders), "the driver has its specification")
        assert driver.orders[0].pauses == (WHOLE_GROUP,)
        assert group.snapshot().paused
        group.resume()
        assert driver.told[-1] == ("resume", WHOLE_GROUP)
        assert not group.snapshot().paused


@pytest.mark.slow
async def test_a_silent_driver_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    """The group is ready again when the driver responds."""
    driver = FakeDriver()
    driver.last_snapshot = told()
    async with running(driver, silent_seconds=0.05) as (group, _):
        await eventually(lambda: driver.asked > 0, "it runs")
        assert group.snapshot().ready
        driver.hung = True
        await eventually(lambda: not group.snapshot().ready, "the group is unready")
        assert group.snapshot().not_ready_reason == "the Spark driver (pid 4711) has not responded for 50 ms"
        driver.hung = driver.is_silent = False  # the late response arrives
        await eventually(lambda: group.snapshot().ready, "the driver responds again")


async def test_a_cancelled_group_kills_the_driver() -> None:
    driver = FakeDriver()
    async with running(driver) as (_, task):
        await eventually(lambda: driver.asked > 0, "it runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert driver.killed


async def test_a_stop_is_sent_to_the_driver_and_waits_for_its_end() -> None:
    driver = FakeDriver()
    async with running(driver) as (group, task):
        await eventually(lambda: driver.asked > 0, "it runs")
        group.stop()
        assert driver.told == [("stop", None)]
        await asyncio.sleep(0)
        assert not task.done()
        driver.leave(0, told("stopped"))
        await task
        assert group.snapshot().state == "stopped"
        assert driver.killed, "the rest of its process group is killed"


async def test_the_failure_that_the_driver_reports_is_raised() -> None:
    driver = FakeDriver()
    async with running(driver) as (_, task):
        await eventually(lambda: driver.asked > 0, "it runs")
        driver.leave(1, told("failed", failure="data loss in orders@broker-a:0"))
        with pytest.raises(SparkDriverError, match=r"^data loss in orders@broker-a:0$"):
            await task
