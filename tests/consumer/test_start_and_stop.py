"""A handler's `start` and `stop`: their failures end the group, not the process."""

from __future__ import annotations

import asyncio
import contextvars
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
from tests.consumer.handling.odd_handlers import NoText, Panic

VARIABLE = contextvars.ContextVar("variable", default="nothing")


def raising(error: BaseException) -> Callable[[], Any]:
    def start() -> None:
        raise error

    return start


def raising_in_the_loop(error: BaseException) -> Callable[[], Any]:
    async def start() -> None:
        raise error

    return start


@pytest.mark.parametrize("start", [raising, raising_in_the_loop])
@pytest.mark.parametrize("error", [ValueError("x"), NoText()])
async def test_an_exception_of_start_is_raised_unchanged(
    start: Callable[[BaseException], Callable[[], Any]], error: Exception
) -> None:
    with pytest.raises(type(error)) as raised:
        await call_start_or_stop(start(error), SystemClock())
    assert raised.value is error


@pytest.mark.parametrize("start", [raising, raising_in_the_loop])
@pytest.mark.parametrize("error", [SystemExit("no credentials"), KeyboardInterrupt(), GeneratorExit(), Panic("x")])
async def test_an_exception_that_would_end_the_process_ends_the_group(
    start: Callable[[BaseException], Callable[[], Any]], error: BaseException
) -> None:
    """HandlerEndedError names the exception."""
    with pytest.raises(HandlerEndedError, match=type(error).__name__) as raised:
        await call_start_or_stop(start(error), SystemClock())
    assert raised.value.__cause__ is error


async def test_context_variables_set_by_start_remain_set() -> None:
    async def start() -> None:
        VARIABLE.set("a connection")

    await call_start_or_stop(start, SystemClock())
    assert VARIABLE.get() == "a connection"


async def test_cancellation_ends_a_running_start() -> None:
    """A group may be stopped while its handler starts."""
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


class Starting:
    """A handler whose start waits: in the loop until it is cancelled, in a thread until `go_on` is set."""

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
async def test_stopping_a_group_does_not_wait_for_the_handlers_start(is_async: bool) -> None:
    """A coroutine is cancelled, a thread is abandoned. `stop` is not called, because `start` has not ended."""
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
