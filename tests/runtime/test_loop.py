"""The event loop of a process runs until its main coroutine ends, even if other code stops it or exits."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
import uvloop

from rmqd.runtime.event_loop import run_in_loop


async def leave_a_task(error: BaseException) -> None:
    """Leave a task that raises and is not awaited."""

    async def fail() -> None:
        raise error

    task = asyncio.create_task(fail())
    await asyncio.sleep(0.01)
    task.exception()


async def stop() -> None:
    asyncio.get_running_loop().stop()


async def exit_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)


async def exit_in_a_task() -> None:
    await leave_a_task(SystemExit(3))


async def interrupt() -> None:
    await leave_a_task(KeyboardInterrupt())


@pytest.fixture
def handled_signals() -> Iterator[None]:
    """SIGINT has a handler, as in the daemon."""
    former = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("handled_signals")
@pytest.mark.parametrize("act", [stop, exit_in_a_callback, exit_in_a_task, interrupt])
def test_the_loop_continues_after_a_stop_an_exit_or_an_interrupt(act: Callable[[], object]) -> None:
    """Its other tasks continue, too."""

    async def main() -> str:
        beside = asyncio.create_task(asyncio.sleep(0.05, "beside"))
        result = act()
        assert asyncio.iscoroutine(result)
        await result
        await asyncio.sleep(0.02)
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        return await beside

    assert run_in_loop(main()) == "beside"


def test_remaining_tasks_are_cancelled_at_the_end() -> None:
    """Also if a cancelled task exits."""
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")
            sys.exit(5)

    async def main() -> int:
        asyncio.create_task(linger(), name="left")  # noqa: RUF006
        await asyncio.sleep(0)
        return 7

    assert run_in_loop(main()) == 7
    assert ended == ["cancelled"]
