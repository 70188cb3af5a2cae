"""A handler's `start` and `stop`: whatever they do, only their own group fails."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.handling.handler_threads import HandlerEndedError, call_start_or_stop
from rmqd.runtime.clock import SystemClock
from tests.consumer.handling.odd_handlers import own_task
from tests.consumer.test_start_and_stop import Starting


async def cancel_itself() -> None:
    own_task().cancel()
    await asyncio.sleep(1)


async def let_out_a_cancellation() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("start", [cancel_itself, let_out_a_cancellation])
async def test_a_start_that_cancels_itself_is_a_failure(start: Callable[[], Any]) -> None:
    """It does not cancel the group's own task, which would end without an error."""
    with pytest.raises(HandlerEndedError, match="cancelled itself"):
        await call_start_or_stop(start, SystemClock())
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_function_begins_though_the_loops_executor_is_full() -> None:
    """Calls of another group's handler hang in it."""
    go_on, loop = threading.Event(), asyncio.get_running_loop()
    hanging = [loop.run_in_executor(None, go_on.wait) for _ in range(64)]
    try:
        await call_start_or_stop(lambda: sys.getsizeof(1), SystemClock())
    finally:
        go_on.set()
        await asyncio.gather(*hanging)


async def test_a_stop_that_ignores_its_cancellation_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise neither the group nor the process could end."""
    monkeypatch.setattr("rmqd.consumer.handling.handler_threads.CANCEL_TIMEOUT_SECONDS", 0.1)
    is_over = asyncio.Event()

    async def stop() -> None:
        while not is_over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await is_over.wait()

    ending = asyncio.create_task(call_start_or_stop(stop, SystemClock()))
    await asyncio.sleep(0)
    ending.cancel()
    with capture_logs() as logs:
        _, left = await asyncio.wait((ending,), timeout=10)
    is_over.set()
    assert not left
    assert ending.cancelled()
    assert [line["event"] for line in logs] == ["handler.left_behind"]


async def test_a_start_that_completes_during_a_stop_is_followed_by_the_handlers_stop() -> None:
    """The handler's stop closes what its start opened."""
    handler = Starting()

    async def start() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await handler.start()

    consumer = handler.consumer(start)
    running = asyncio.create_task(consumer.run())
    await asyncio.to_thread(handler.begun.wait)
    consumer.stop()
    await running
    assert handler.is_stopped
