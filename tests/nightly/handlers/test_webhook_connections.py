"""`webhook`: the number of connections, the calls that share them, and the work of a call."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import httpx
import pytest

from rmqd_handlers.webhook import Webhook, connections
from tests.handlers.messages import make_batch, make_message
from tests.servers.http_peer import OK
from tests.waiting import eventually


@dataclass(slots=True)
class Server:
    """Responds to all requests once as many as the barrier's parties have arrived."""

    barrier: asyncio.Barrier
    requests: int = 0
    connections: int = 0
    """Including closed ones."""
    open: int = 0
    most_open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(len(b"{}"))
                self.requests += 1
                await self.barrier.wait()
                writer.write(OK)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def started(together: int, max_connections: int) -> AsyncIterator[tuple[Server, Webhook]]:
    peer = Server(asyncio.Barrier(together))
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    options = {"url": url, "max_connections": max_connections, "retry_for": "0s"}
    handler = Webhook(Webhook.Options.model_validate(options))
    async with server:
        await handler.start()
        try:
            yield peer, handler
        finally:
            await handler.stop()


async def call(handler: Webhook, times: int) -> None:
    """Make parallel calls."""
    await asyncio.gather(*(handler.handle(make_batch(make_message(b"{}"))) for _ in range(times)))


@contextmanager
def counted() -> Iterator[list[int]]:
    """The number of function calls in the client's pool during the block: work, not time."""
    count = [0]

    def called(frame: FrameType, event: str, _: Any) -> None:
        count[0] += event == "call" and "httpcore" in frame.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield count
    finally:
        sys.setprofile(before)


async def test_calls_beyond_max_connections_reuse_the_connections() -> None:
    async with started(together=20, max_connections=20) as (peer, handler):
        await call(handler, 60)
        await call(handler, 20)

        assert (peer.requests, peer.connections, peer.most_open) == (80, 20, 20)


async def test_sequential_calls_reuse_one_connection() -> None:
    async with started(together=1, max_connections=300) as (peer, handler):
        for _ in range(5):
            await call(handler, 1)

        assert (peer.requests, peer.connections) == (5, 1)


async def test_the_work_of_a_call_does_not_grow_with_parallel_calls() -> None:
    work = {}
    for calls in (4, 64):
        async with started(together=calls, max_connections=300) as (peer, handler):
            await call(handler, calls)  # connects
            with counted() as count:
                await call(handler, calls)
            work[calls] = count[0] / calls
            assert peer.connections == calls

    assert 0 < work[64] < 1.5 * work[4]


async def test_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(together=4, max_connections=300) as (peer, handler):
        await call(handler, 4)
        assert peer.open == 4

        peer.barrier = asyncio.Barrier(1)
        monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
        await call(handler, 1)
        await eventually(lambda: peer.open <= 1, "the idle connections are closed")


async def test_a_cancelled_call_closes_its_connection() -> None:
    """The connection may stay in use forever."""
    kept = connections.Connections(httpx.AsyncClient, 1)
    with pytest.raises(asyncio.CancelledError):
        async with kept.client() as cut:
            raise asyncio.CancelledError
    async with kept.client() as fresh:
        assert fresh is not cut
    async with kept.client() as again:
        assert again is fresh
    await kept.close()

    assert (cut.is_closed, fresh.is_closed) == (True, True)
