"""The tests' manual clock: waits end in the order of their times, and each woken task runs before the next one."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.runtime.clock import TASKS_PER_TURN, Clock, SystemClock, wait_for_tick, wait_within
from tests.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
async def test_waits_of_zero_seconds_end_without_advancing_the_clock(clock: Clock) -> None:
    called = asyncio.Event()
    await clock.sleep(0)
    async with clock.timeout(60), clock.timeout(None):
        clock.call_at(clock.monotonic(), called.set)
        await called.wait()
    with pytest.raises(TimeoutError):
        async with clock.timeout(0):
            await asyncio.Event().wait()
    done = asyncio.create_task(clock.sleep(0))
    endless = asyncio.create_task(asyncio.Event().wait())
    assert await clock.wait((done, endless), return_when=asyncio.FIRST_COMPLETED) == ({done}, {endless})
    assert await clock.wait((endless,), timeout=0) == (set(), {endless})
    endless.cancel()


async def test_sleepers_wake_in_order_and_run_before_the_next_one_wakes(clock: ManualClock) -> None:
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, *naps: float) -> None:
        for seconds in naps:
            await clock.sleep(seconds)
            woken.append((name, clock.monotonic() - began))

    began = clock.monotonic()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sleep("a", 3, 3))
        tasks.create_task(sleep("b", 2, 2))
        await clock.advance(1.5)
        assert woken == []
        await clock.advance(10)
    assert woken == [("b", 2), ("a", 3), ("b", 4), ("a", 6)]


async def test_a_timeout_ends_its_block_but_not_the_code_after_it(clock: ManualClock) -> None:
    async def limited(work_seconds: float) -> str:
        try:
            async with clock.timeout(5):
                await clock.sleep(work_seconds)
        except TimeoutError:
            return "too long"
        await clock.sleep(60)
        return "in time"

    slow, quick = asyncio.create_task(limited(6)), asyncio.create_task(limited(4))
    await clock.advance(5)
    assert (slow.done(), quick.done()) == (True, False)
    await clock.advance(59)
    assert (await slow, await quick) == ("too long", "in time")


async def test_wait_returns_pending_tasks_at_its_timeout(clock: ManualClock) -> None:
    soon, late = asyncio.create_task(clock.sleep(1)), asyncio.create_task(clock.sleep(9))
    waiting = asyncio.create_task(clock.wait((soon, late), timeout=5))
    await clock.advance(5)
    assert await waiting == ({soon}, {late})
    await clock.advance(4)
    assert late.done()


async def test_a_cancelled_callback_is_not_called(clock: ManualClock) -> None:
    called: list[str] = []
    clock.call_later(2, called.append, "later")
    clock.call_at(clock.monotonic() + 1, called.append, "at")
    clock.call_at(clock.monotonic() + 1, called.append, "called off").cancel()
    clock.call_at(clock.monotonic(), called.append, "called off at once").cancel()
    await clock.advance(3)
    assert called == ["at", "later"]


async def test_turn_calls_all_due_callbacks_at_its_end(clock: ManualClock) -> None:
    seen: list[float] = []
    for seconds in (1, 2):
        clock.call_later(seconds, lambda: seen.append(clock.monotonic()))
    began = clock.monotonic()
    clock.turn(3)
    assert seen == [began + 3] * 2


async def test_until_advances_the_clock_just_until_its_condition_holds(clock: ManualClock) -> None:
    began, woken = clock.monotonic(), asyncio.Event()
    clock.call_later(70, woken.set)
    await clock.until(woken.is_set, "the event is set")
    assert clock.monotonic() - began == 70


async def test_flowing_time_wakes_sleepers_and_stops_after_the_block(clock: ManualClock) -> None:
    async with clock.flowing():
        await clock.sleep(60)
    stopped = clock.monotonic()
    await asyncio.sleep(0)
    assert clock.monotonic() == stopped


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
async def test_wait_within_returns_at_once_if_the_event_is_set(clock: Clock) -> None:
    came = asyncio.Event()
    came.set()
    assert await wait_within(clock, 60, came.wait())
    assert await wait_within(clock, None, came.wait())
    assert not await wait_within(clock, 0, asyncio.Event().wait())


async def test_wait_within_ends_at_its_timeout(clock: ManualClock) -> None:
    came = asyncio.Event()
    waiting = [asyncio.create_task(wait_within(clock, seconds, came.wait())) for seconds in (5, 6, None)]
    await clock.advance(5.5)
    assert [one.done() for one in waiting] == [True, False, False]
    came.set()
    assert await asyncio.gather(*waiting) == [False, True, True]


async def test_waits_of_one_length_end_together(clock: ManualClock) -> None:
    """They share one timer. A cancelled wait does not affect the others."""
    first = asyncio.create_task(wait_for_tick(clock, 2))
    await clock.advance(1.5)
    others = [asyncio.create_task(wait_for_tick(clock, 2)) for _ in range(TASKS_PER_TURN + 1)]
    await asyncio.sleep(0)
    others.pop().cancel()
    assert not first.done()
    await clock.advance(0.5)
    assert all(one.done() for one in (first, *others))
    again = asyncio.create_task(wait_for_tick(clock, 2))
    await clock.advance(1.9)
    assert not again.done()
    await clock.advance(0.1)
    assert again.done()


async def test_a_wait_that_is_skipped_lasts_until_a_later_tick(clock: ManualClock) -> None:
    skips = [True, True, False]
    waiting = asyncio.create_task(wait_for_tick(clock, 2, lambda: skips.pop(0)))
    await clock.advance(5.9)
    assert skips == [False]
    assert not waiting.done()
    await clock.advance(0.1)
    assert waiting.done()


async def test_an_exception_in_skip_is_raised_by_its_wait(clock: ManualClock) -> None:
    """Otherwise it would wait forever. Other waits for the same tick are not affected."""
    failing, other = asyncio.create_task(wait_for_tick(clock, 2, [].pop)), asyncio.create_task(wait_for_tick(clock, 2))
    await clock.advance(2)
    assert isinstance(failing.exception(), IndexError)
    assert other.done()
