"""A server below the level of frames, for bytes that no correct peer sends."""

from __future__ import annotations

import asyncio
import ssl
import struct

from rmqd.wire.command import RemotingCommand, decode_command


class RawServer:
    """A server that calls `serve` with each accepted connection."""

    def __init__(self, serve: object, tls: ssl.SSLContext | None = None) -> None:
        self.serve = serve
        self.tls = tls
        self.accepted = 0

    async def __aenter__(self) -> RawServer:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self.tls)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        self.tasks: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self.serve(reader, writer)  # type: ignore[operator]
        except asyncio.CancelledError:
            pass  # the server's end; asyncio would log it as a failure
        finally:
            self.tasks.discard(task)
            writer.transport.abort()


async def read_command(reader: asyncio.StreamReader) -> RemotingCommand:
    """The next request on a raw connection."""
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    return decode_command(await reader.readexactly(length))
