"""A group on Spark as the daemon sees it, over a driver that does as the test says.

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


async def test_a_stop_before_the_driver_has_begun_ends_it_at_once() -> None:
    driver = FakeDriver()
    async with running(driver) as (group, task):
        group.stop()
        await task
        assert driver.orders == []
        assert driver.killed


async def test_a_stop_while_the_driver_builds_reaches_it() -> None:
    driver = FakeDriver()
    driver.hung = True
    async with running(driver) as (group, _):
        await eventually(lambda: bool(driver.orders), "it has its order")
        group.stop()
        assert driver.told == [("stop", None)]


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [(-9, "was killed by SIGKILL"), (3, "ended with exit code 3"), (0, "without being asked to stop")],
)
async def test_a_driver_that_just_ends_is_a_failure(exit_code: int, words: str) -> None:
    """So that the supervisor starts another one; its counters are kept until then."""
    driver = FakeDriver()
    driver.last_snapshot = told()
    async with running(driver) as (group, task):
        await eventually(lambda: driver.asked > 0, "it runs")
        driver.leave(exit_code)
        with pytest.raises(SparkDriverError, match=rf"Spark driver \(pid 4711\).*{words}"):
            await task
        assert group.snapshot().queues == ()


async def test_a_group_that_handles_what_is_there_stays_as_stopped() -> None:
    """It is not started again and again; it ends when it is asked to."""
    driver = FakeDriver()
    async with running(driver, trigger="available_now") as (group, task):
        await eventually(lambda: driver.asked > 0, "it runs")
        driver.leave(0, told("stopped"))
        await eventually(lambda: group.snapshot().state == "stopped", "it has ended")
        assert not task.done()
        group.stop()
        await task


async def test_an_order_that_is_refused_is_told_as_it_is() -> None:
    driver = FakeDriver()
    driver.refusal = ConfigError(["groups.mailer.spark.master: nonsense"])
    async with running(driver) as (_, task):
        with pytest.raises(ConfigError, match="nonsense"):
            await task
        assert driver.killed


async def test_a_pause_holds_before_and_after_the_start() -> None:
    driver = FakeDriver()
    async with running(driver) as (group, _):
        group.pause()
        await eventually(lambda: bool(driver.orders), "it has its order")
        assert driver.orders[0].pauses == (WHOLE_GROUP,)
        assert group.snapshot().paused
        group.resume()
        assert driver.told[-1] == ("resume", WHOLE_GROUP)
        assert not group.snapshot().paused


@pytest.mark.slow
async def test_a_silent_driver_is_not_ready(capsys: pytest.CaptureFixture[str]) -> None:
    """Until it answers again."""
    driver = FakeDriver()
    driver.last_snapshot = told()
    async with running(driver, silent_seconds=0.05) as (group, _):
        await eventually(lambda: driver.asked > 0, "it runs")
        assert group.snapshot().ready
        driver.hung = True
        await eventually(lambda: not group.snapshot().ready, "it is missed")
        assert group.snapshot().not_ready_reason == "the Spark driver (pid 4711) has not responded for 50 ms"
        driver.hung = driver.is_silent = False  # the late answer has come
        await eventually(lambda: group.snapshot().ready, "it answers again")


async def test_giving_up_kills_the_driver() -> None:
    driver = FakeDriver()
    async with running(driver) as (_, task):
        await eventually(lambda: driver.asked > 0, "it runs")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert driver.killed


async def test_a_stop_is_passed_on_and_waited_for() -> None:
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
        assert driver.killed, "what is left of its process group ends with it"


async def test_what_the_driver_says_is_wrong_is_the_groups_failure() -> None:
    driver = FakeDriver()
    async with running(driver) as (_, task):
        await eventually(lambda: driver.asked > 0, "it runs")
        driver.leave(1, told("failed", failure="data loss in orders@broker-a:0"))
        with pytest.raises(SparkDriverError, match=r"^data loss in orders@broker-a:0$"):
            await task
