"""The HTTP server of the benchmark of `concurrency: auto`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from bench.knee_calls import Calls
from bench.knee_server import KneeServer
from tests.waiting import eventually

Ask = Callable[[str], Coroutine[Any, Any, Any]]


@pytest.fixture
async def ask() -> AsyncIterator[Ask]:
    """Requests to a server that handles no requests yet."""
    server = await asyncio.start_server(KneeServer(0, 0.0).serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def request(path: str) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            writer.write(f"POST {path} HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            _, _, length = [await reader.readline() for _ in range(3)][1].partition(b":")
            return json.loads(await reader.readexactly(int(length)))

    async with server:
        yield request


async def test_the_server_handles_no_more_requests_than_its_knee(ask: Ask) -> None:
    """Other requests wait until the knee moves. The figures report the rate of responses."""
    waiting = [asyncio.create_task(ask("/")) for _ in range(3)]
    assert (await ask("/figures"))["rate"] == 0
    await ask("/knee/1")
    await asyncio.gather(*waiting)
    assert (await ask("/figures"))["rate"] > 0
    await ask("/reset")
    assert (await ask("/figures"))["rate"] == 0


async def test_the_handler_returns_when_the_server_responds() -> None:
    """The next call uses the same connection."""
    knee_server = KneeServer(0, 0.0)
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await knee_server.serve(reader, writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        handler = Calls({"port": server.sockets[0].getsockname()[1]})
        call = asyncio.create_task(handler.handle(None))
        await eventually(lambda: connections == 1, "the handler has connected")
        assert not call.done()
        knee_server.move(1)
        await call
        await handler.handle(None)
        await handler.stop()
    assert connections == 1
