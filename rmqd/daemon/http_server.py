"""The HTTP server inside our own event loop: uvicorn, with the limits that it does not have itself.

At most 256 connections; a request's header within 10 seconds and 16 KiB, its body within 10 seconds and 64 KiB.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

MAX_CONNECTIONS = 256
HEADER_SECONDS = 10.0
MAX_HEADER_BYTES = 16 * 1024
BODY_SECONDS = 10.0
MAX_BODY_BYTES = 64 * 1024
KEEP_ALIVE_SECONDS = 5
CLOSE_SECONDS = 1

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class LimitedProtocol(H11Protocol):
    """A connection that is closed where it is one too many, or slow with its header."""

    _header_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse what is above the limit; give the others the time for their header."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(_FULL)
            transport.close()
            return
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        """As uvicorn, and watch that a header that has begun also ends."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, whatever its type says
        if cycle is not None and not cycle.response_complete:
            self._header_arrived()
        elif self._header_deadline is None:
            self._expect_header()

    def on_response_complete(self) -> None:
        """As uvicorn; while nothing arrives, its keep-alive timeout holds."""
        super().on_response_complete()
        self._header_arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn."""
        self._header_arrived()
        super().connection_lost(exc)

    def _expect_header(self) -> None:
        self._header_deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _header_arrived(self) -> None:
        if self._header_deadline is not None:
            self._header_deadline.cancel()
            self._header_deadline = None


class BodyLimit:
    """ASGI middleware: reads the whole body, as long as it is small and arrives in time, before the app is called."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 431, 413 or 408 where a limit is passed."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if sum(len(name) + len(value) + 4 for name, value in headers) + len(scope["raw_path"]) > MAX_HEADER_BYTES:
            await _refuse(send, 431, b"the header is larger than 16 KiB\n")
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(headers, receive)
        except TimeoutError:
            await _refuse(send, 408, b"the body took longer than 10 s\n")
            return
        if body is None:
            await _refuse(send, 413, b"the body is larger than 64 KiB\n")
            return
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)


async def _read_body(headers: list[tuple[bytes, bytes]], receive: Receive) -> bytes | None:
    for name, value in headers:
        if name == b"content-length" and int(value) > MAX_BODY_BYTES:
            return None
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return bytes(body)
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(body)


async def _refuse(send: Send, status: int, text: bytes) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the daemon."""
        yield


class HttpServer:
    """Serves an ASGI app on a socket that listens already."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        config = uvicorn.Config(
            BodyLimit(app),
            http=LimitedProtocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
        self._server: Any = _Server(config)
        self._socket = sock

    async def run(self) -> None:
        """Serve until `stop`."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Accept nothing more, let answers under way finish for a second, and end."""
        self._server.should_exit = True
