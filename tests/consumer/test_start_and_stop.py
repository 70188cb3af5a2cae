"""A handler's `start` and `stop`: whatever they do, it is the group's failure and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.consumer.handling.handler_threads import HandlerEndedError, call_start_or_stop
from rmqd.consumer.push_consumer import PushConsumer
from rmqd.handler_api.batch import Batch, LoadedHandler
from rmqd.runtime.clock import SystemClock
from tests.consumer.groups import group_options
from tests.consumer.handling.odd_handlers import NoText, Panic, own_task

VARIABLE = contextvars.ContextVar("variable", default="nothing")


def raising(error: BaseException) -> Callable[[], Any]:
    def start() -> None:
        raise error

    return start


def raising_in_the_loop(error: BaseException) -> Callable[[], Any]:
    async def start() -> None:
        raise error

    return start


async def cancel_itself() -> None:
    own_task().cancel()
    await asyncio.sleep(1)


async def let_out_a_cancellation() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("start", [raising, raising_in_the_loop])
@pytest.mark.parametrize("error", [ValueError("x"), NoText()])
async def test_an_exception_is_raised_as_it_is(
    start: Callable[[BaseException], Callable[[], Any]], error: Exception
) -> None:
    with pytest.raises(type(error)) as raised:
        await call_start_or_stop(start(error), SystemClock())
    assert raised.value is error


@pytest.mark.parametrize("start", [raising, raising_in_the_loop])
@pytest.mark.parametrize("error", [SystemExit("no credentials"), KeyboardInterrupt(), GeneratorExit(), Panic("x")])
async def test_what_would_end_the_process_ends_the_group(
    start: Callable[[BaseException], Callable[[], Any]], error: BaseException
) -> None:
    """By an error that names it."""
    with pytest.raises(HandlerEndedError, match=type(error).__name__) as raised:
        await call_start_or_stop(start(error), SystemClock())
    assert raised.value.__cause__ is error


@pytest.mark.parametrize("start", [cancel_itself, let_out_a_cancellation])
async def test_cancelling_itself_is_a_failure_too(start: Callable[[], Any]) -> None:
    """And no cancellation of the group's own task, which would end it without a word."""
    with pytest.raises(HandlerEndedError, match="cancelled itself"):
        await call_start_or_stop(start, SystemClock())
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_what_it_sets_in_its_context_is_there_for_the_handler() -> None:
    async def start() -> None:
        VARIABLE.set("a connection")

    await call_start_or_stop(start, SystemClock())
    assert VARIABLE.get() == "a connection"


async def test_who_is_cancelled_ends_the_call() -> None:
    """A group that is given up while its handler starts."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def start() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    starting = asyncio.create_task(call_start_or_stop(start, SystemClock()))
    await begun.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert ended.is_set()


async def test_a_function_begins_though_the_loops_executor_is_full() -> None:
    """Calls of another group's handler hang there."""
    go_on, loop = threading.Event(), asyncio.get_running_loop()
    hanging = [loop.run_in_executor(None, go_on.wait) for _ in range(64)]
    try:
        await call_start_or_stop(lambda: sys.getsizeof(1), SystemClock())
    finally:
        go_on.set()
        await asyncio.gather(*hanging)


async def test_one_that_ignores_its_cancellation_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could end otherwise: not the group, not the process."""
    monkeypatch.setattr("rmqd.consumer.handling.handler_threads.CANCEL_PATIENCE_SECONDS", 0.1)
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


class Starting:
    """A handler whose start takes until it is let go, in the loop or in a thread."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.is_cancelled = self.is_stopped = False

    async def start(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_cancelled = True

    def start_in_a_thread(self) -> None:
        self.begun.set()
        self.go_on.wait()

    async def handle(self, batch: Batch) -> None:
        """Handle nothing."""

    def stop(self) -> None:
        self.is_stopped = True

    def consumer(self, start: Callable[[], Any]) -> PushConsumer:
        loaded = LoadedHandler("starting", self.handle, True, start, self.stop)
        client = ClientInstance(ClientOptions(nameservers=("127.0.0.1:1",)))
        return PushConsumer(group_options(shutdown_timeout_seconds=600.0), loaded, client)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_group_that_is_stopped_does_not_wait_for_its_handlers_start(is_async: bool) -> None:
    """The start is cancelled, or its thread is left alone; there is nothing yet that would have to be stopped."""
    handler = Starting()
    consumer = handler.consumer(handler.start if is_async else handler.start_in_a_thread)
    with capture_logs() as logs:
        running = asyncio.create_task(consumer.run())
        try:
            await asyncio.to_thread(handler.begun.wait)
            consumer.stop()
            await asyncio.wait((running,), timeout=10)
            assert running.done()
        finally:
            handler.go_on.set()
            running.cancel()
    await running
    assert consumer.snapshot().state == "stopped"
    assert (handler.is_cancelled, handler.is_stopped) == (is_async, False)
    assert [line["event"] for line in logs] == ["handler.not_started"]


async def test_a_start_that_ends_in_spite_of_the_stop_is_followed_by_the_handlers_stop() -> None:
    """What it opened is there to be closed."""
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
