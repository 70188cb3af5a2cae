"""A handler that POSTs to the server with a knee and needs little CPU.

The handler `webhook` is not used, because its client httpx needs more CPU for a call. With 64 calls in flight, the
limit could be the CPU instead of the server's knee.
"""

from __future__ import annotations

import asyncio
from typing import Any

REQUEST = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{}"


class Calls:
    """Sends one request for each batch."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._port = int(options["port"])
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def handle(self, batch: Any) -> None:
        """Send a request, and wait for the whole response."""
        connection = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = connection
        writer.write(REQUEST)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.rpartition(b":")[2]))
        self._idle.append(connection)

    async def stop(self) -> None:
        """Close the connections."""
        for _, writer in self._idle:
            writer.close()
