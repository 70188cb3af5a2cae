"""`webhook`: how many connections there are, which calls share them, and what a call costs by their number."""

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
    """Answers once so many requests are there, to all of them."""

    barrier: asyncio.Barrier
    requests: int = 0
    connections: int = 0
    """All that there were."""
    open: int = 0
    most_open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
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
    """So many at once."""
    await asyncio.gather(*(handler.handle(make_batch(make_message(b"{}"))) for _ in range(times)))


@contextmanager
def counted() -> Iterator[list[int]]:
    """How often a function of the client's pool was called in the block: work in place of a time."""
    count = [0]

    def called(frame: FrameType, event: str, _: Any) -> None:
        count[0] += event == "call" and "httpcore" in frame.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield count
    finally:
        sys.setprofile(before)


async def test_calls_beyond_max_connections_take_the_same_connections() -> None:
    async with started(together=20, max_connections=20) as (peer, handler):
        await call(handler, 60)
        await call(handler, 20)

        assert (peer.requests, peer.connections, peer.most_open) == (80, 20, 20)


async def test_one_call_after_the_other_takes_the_same_connection() -> None:
    async with started(together=1, max_connections=300) as (peer, handler):
        for _ in range(5):
            await call(handler, 1)

        assert (peer.requests, peer.connections) == (5, 1)


async def test_a_call_takes_as_much_work_beside_many_as_beside_few() -> None:
    work = {}
    for calls in (4, 64):
        async with started(together=calls, max_connections=300) as (peer, handler):
            await call(handler, calls)  # connects
            with counted() as count:
                await call(handler, calls)
            work[calls] = count[0] / calls
            assert peer.connections == calls

    assert 0 < work[64] < 1.5 * work[4]


async def test_connections_that_are_not_needed_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started(together=4, max_connections=300) as (peer, handler):
        await call(handler, 4)
        assert peer.open == 4

        peer.barrier = asyncio.Barrier(1)
        monkeypatch.setattr(connections, "IDLE_SECONDS", 0.0)
        await call(handler, 1)
        await eventually(lambda: peer.open <= 1, "those that had no call are closed")


async def test_a_call_that_is_cut_short_takes_its_connection_along() -> None:
    """It may be one that is taken for good."""
    kept = connections.Connections(httpx.AsyncClient, 1)
    with pytest.raises(asyncio.CancelledError):
        async with kept.one() as cut:
            raise asyncio.CancelledError
    async with kept.one() as fresh:
        assert fresh is not cut
    async with kept.one() as again:
        assert again is fresh
    await kept.close()

    assert (cut.is_closed, fresh.is_closed) == (True, True)
