"""A connection that can become silent while TCP still acknowledges, as with a proxy, load balancer or NAT."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class SilentLine:
    """A proxy at `address`, which passes bytes between clients and the server on a port of 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self.accepted = 0
        self.swallows_new = False
        """Whether connections that are made from now on are silent from the beginning."""
        self._server_port = port
        self._passes: set[asyncio.Event] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    @property
    def open(self) -> int:
        """Connections that the client has not closed."""
        return len(self._tasks)

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def swallow(self) -> None:
        """Drop all bytes of the existing connections from now on, in both directions."""
        for passes in self._passes:
            passes.clear()

    async def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        passes = asyncio.Event()
        self._passes.add(passes)
        if not self.swallows_new:
            passes.set()
        server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        back = asyncio.create_task(_pass(server, to_client, passes))
        try:
            with contextlib.suppress(asyncio.CancelledError):  # at the end; asyncio would log it as a failure
                await _pass(client, to_server, passes)
        finally:
            back.cancel()
            to_client.transport.abort()
            to_server.transport.abort()
            self._passes.discard(passes)
            self._tasks.discard(task)


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter, passes: asyncio.Event) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(65536):
            if passes.is_set():
                target.write(data)
