"""The event loop of a process runs until what it was started for has ended, whatever code in it does."""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from collections.abc import Callable, Iterator

import pytest
import uvloop

from rmqd.runtime.event_loop import keep_running, run_in_loop


async def leave_a_task(error: BaseException) -> None:
    """One that raises, and that nobody awaits."""

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
    """SIGINT is taken care of, as in the daemon."""
    former = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.usefixtures("handled_signals")
@pytest.mark.parametrize("act", [stop, exit_in_a_callback, exit_in_a_task, interrupt])
def test_it_goes_on(act: Callable[[], object]) -> None:
    """With all that was under way in it."""

    async def main() -> str:
        beside = asyncio.create_task(asyncio.sleep(0.05, "beside"))
        result = act()
        assert asyncio.iscoroutine(result)
        await result
        await asyncio.sleep(0.02)
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        return await beside

    assert run_in_loop(main()) == "beside"


def test_an_interrupt_that_nobody_handles_ends_it() -> None:
    """As Ctrl-C does before the daemon takes the signals over."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what is beside it without

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(5)

    try:
        with pytest.raises(KeyboardInterrupt):
            run_in_loop(main())
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [SystemExit(4), ValueError("x")])
def test_what_main_raises_is_raised(error: BaseException) -> None:
    async def main() -> None:
        raise error

    with pytest.raises(type(error)):
        run_in_loop(main())


def test_what_is_left_is_cancelled_at_the_end() -> None:
    """Also where it exits when it is."""
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


def test_a_loop_that_cannot_run_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free descriptor each start fails at once: the process is to end, not to spin."""
    loop = asyncio.new_event_loop()

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(loop, "run_forever", fail)
    with pytest.raises(OSError, match="Too many open files"):
        keep_running(loop, lambda: False)
    loop.close()
