"""A group's limit of messages per second."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.consumer.cache.flow_control import RateLimit
from rmqd.runtime.clock import SystemClock
from tests.clock import ManualClock


async def test_no_limit_never_waits() -> None:
    """0 means no limit."""
    limit = RateLimit(0, ManualClock())
    limit.charge(1_000_000)
    async with asyncio.timeout(30):
        await limit.wait()


async def test_a_pull_waits_until_earlier_pulls_are_paid_for() -> None:
    """Two pulls of 20 messages at 200 a second take a fifth of a second."""
    clock = SystemClock()
    limit, begin = RateLimit(200, clock), clock.monotonic()
    await limit.wait()
    limit.charge(20)
    limit.charge(20)
    await limit.wait()
    assert clock.monotonic() - begin >= 0.2


async def test_time_without_messages_is_not_saved_up() -> None:
    """After a quiet hour there is no burst."""
    clock = ManualClock()
    limit = RateLimit(10, clock)
    clock.turn(3600)
    limit.charge(10)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await limit.wait()
    clock.turn(1)
    await limit.wait()


@pytest.mark.parametrize(("before", "after"), [(1, 0), (1, 1_000_000), (10, 500_000)])
async def test_a_higher_limit_applies_to_a_pull_that_already_waits(before: float, after: float) -> None:
    """At the old limit, ten thousand messages would take more than a quarter of an hour."""
    limit = RateLimit(before, SystemClock())
    limit.charge(10_000)
    waiting = asyncio.create_task(limit.wait())
    await asyncio.sleep(0)
    limit.change_rate(after)
    async with asyncio.timeout(30):
        await waiting


async def test_earlier_pulls_are_paid_for_at_the_new_limit() -> None:
    """A lower limit makes the next pull wait longer; without a limit before, nothing is owed."""
    clock = ManualClock()
    limit = RateLimit(100, clock)
    limit.charge(200)  # two seconds
    limit.change_rate(10)  # twenty
    clock.turn(19.5)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await limit.wait()
    clock.turn(1)
    await limit.wait()
    fresh = RateLimit(0, clock)
    fresh.charge(1000)
    fresh.change_rate(1)
    async with asyncio.timeout(30):
        await fresh.wait()


def test_a_low_rate_asks_for_few_messages() -> None:
    """So that messages do not arrive in bursts."""
    for per_second, most in [(0, 32), (1000, 32), (5, 5), (0.2, 1)]:
        assert RateLimit(per_second, ManualClock()).batch_limit(32) == most
