"""rmqd's own threads: calls start at once, even if handlers fill the executor of the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator

import pytest

from rmqd.client.routing.name_server_client import fetch_text, resolve_host
from rmqd.runtime.own_threads import call_in_thread
from tests.waiting import eventually


@pytest.fixture
async def full_executor() -> AsyncIterator[None]:
    """Occupy all threads of the loop's executor."""
    go_on = threading.Event()
    loop = asyncio.get_running_loop()
    hanging = [loop.run_in_executor(None, go_on.wait) for _ in range(64)]
    yield
    go_on.set()
    await asyncio.gather(*hanging)


@pytest.mark.usefixtures("full_executor")
async def test_calls_start_while_the_executor_of_the_loop_is_full() -> None:
    names = [await call_in_thread(lambda: threading.current_thread().name) for _ in range(3)]
    assert names == ["rmqd"] * 3


@pytest.mark.usefixtures("full_executor")
async def test_host_names_are_resolved_while_the_executor_of_the_loop_is_full() -> None:
    assert await resolve_host("localhost", 1)


async def test_hanging_calls_do_not_delay_other_calls() -> None:
    go_on = threading.Event()
    hanging = [asyncio.create_task(call_in_thread(go_on.wait)) for _ in range(50)]
    assert await call_in_thread(lambda: 7) == 7
    go_on.set()
    assert await asyncio.gather(*hanging) == [True] * 50


@pytest.mark.parametrize("error", [ValueError("x"), StopAsyncIteration("x"), SystemExit(1)])
async def test_the_exception_of_a_call_is_raised(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        await call_in_thread(fail)
    assert raised.value is error


async def test_a_call_runs_in_the_context_of_its_caller() -> None:
    variable = contextvars.ContextVar("variable", default="")
    variable.set("of the caller")
    assert await call_in_thread(variable.get) == "of the caller"


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["in its head", "in its body"])
async def test_a_slow_address_server_does_not_occupy_a_thread(head: bytes) -> None:
    """At the caller's deadline the connection is closed, which ends the request in its thread."""
    closed = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        try:
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass
        closed.set()
        writer.close()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        busy = len(_busy_threads())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await fetch_text(f"http://127.0.0.1:{port}/")
        await asyncio.wait_for(closed.wait(), 5)
        await eventually(lambda: len(_busy_threads()) <= busy, "the thread is free")


def _busy_threads() -> list[str]:
    """The threads that read from an address server."""
    import sys

    frames = sys._current_frames().values()
    return [frame.f_code.co_name for frame in frames if _is_reading(frame)]


def _is_reading(frame: object) -> bool:
    while frame is not None:
        if getattr(frame, "f_code").co_filename.endswith("address_server.py"):  # noqa: B009
            return True
        frame = getattr(frame, "f_back")  # noqa: B009
    return False
