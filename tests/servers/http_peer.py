"""An HTTP server that responds as a test says: with any status, with half a response, or not at all."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.servers.process import free_port

RESET, HANG, CLOSE = "reset", "hang", "close"
OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the server received."""

    line: str
    headers: Mapping[str, str]
    """Names in small letters."""
    content: bytes

    @property
    def document(self) -> Any:
        """The content as JSON."""
        return json.loads(self.content)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, and what the server does with the connection afterwards. It keeps the connection if empty."""

    raw: bytes = OK
    then: str = ""


def status(code: int, text: str = "", **headers: str) -> Answer:
    """A complete response."""
    content = text.encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return Answer(f"HTTP/1.1 {code} Said\r\nContent-Length: {len(content)}\r\n{more}\r\n".encode() + content)


@dataclass(slots=True)
class HttpPeer:
    """A server. It responds with `answers`, one for each request, and with 200 after the last of them."""

    port: int = field(default_factory=free_port)
    answers: deque[Answer] = field(default_factory=deque)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    context: ssl.SSLContext | None = None
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        """The URL of the server's resource."""
        return f"{'https' if self.context else 'http'}://localhost:{self.port}/hook"

    @property
    def contents(self) -> list[bytes]:
        """The contents of the requests so far."""
        return [request.content for request in self.requests]

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.context)

    async def kill(self) -> None:
        """Stop listening, and abort all connections."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    def answer_to(self, request: Request) -> Answer:
        """Record a request, and return the response to it."""
        self.requests.append(request)
        return self.answers.popleft() if self.answers else Answer()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                answer = self.answer_to(await _read(reader))
                writer.write(answer.raw)
                await writer.drain()
                if answer.then == HANG:
                    await reader.read()  # until the client gives up
                if answer.then == RESET:
                    writer.transport.abort()
                if answer.then:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(head[0], headers, content)


@asynccontextmanager
async def http_peer(context: ssl.SSLContext | None = None) -> AsyncIterator[HttpPeer]:
    """A server until the end of the block."""
    peer = HttpPeer(context=context)
    await peer.start()
    try:
        yield peer
    finally:
        await peer.kill()
