"""The event loop of a process runs until its main work ends, whatever other code in it does.

The core of these tests is in tests/runtime/test_loop.py.
"""

from __future__ import annotations

import asyncio
import errno
import signal

import pytest

from rmqd.runtime.event_loop import run_in_loop, run_loop_until


def test_an_unhandled_interrupt_ends_the_loop() -> None:
    """As Ctrl-C does before the daemon installs its signal handlers."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(5)

    try:
        with pytest.raises(KeyboardInterrupt):
            run_in_loop(main())
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [SystemExit(4), ValueError("x")])
def test_an_exception_of_main_is_raised(error: BaseException) -> None:
    async def main() -> None:
        raise error

    with pytest.raises(type(error)):
        run_in_loop(main())


def test_a_loop_that_cannot_run_is_not_restarted_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a free descriptor each start fails immediately: the process must end, not spin."""
    loop = asyncio.new_event_loop()

    def fail() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(loop, "run_forever", fail)
    with pytest.raises(OSError, match="Too many open files"):
        run_loop_until(loop, lambda: False)
    loop.close()
