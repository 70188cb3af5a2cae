"""The HTTP server in the daemon's event loop: uvicorn with additional limits.

At most 256 connections are open, fewer if the process may open few descriptors. A request's header must arrive within
10 seconds and 16 KiB, its body within 10 seconds and 64 KiB. If a client does not read a response for 10 seconds, its
connection is closed.

A liveness probe must get a response even if other clients hold all connections. So a connection beyond the limit is
accepted, and the connection that has waited longest for its client is closed instead. A new client has a moment to send
its request, even if hundreds connect at once. Only a few requests are processed at once, but /livez never waits.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote, urlsplit

import h11
import structlog
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from rmqd.daemon.http import http_endpoint as listener

log = structlog.get_logger(__name__)

MAX_CONNECTIONS = listener.MAX_CONNECTIONS
HEADER_SECONDS = 10.0
GRACE_SECONDS = 0.05  # the server does not close a connection that is younger than this
GRACE_TURNS = 3  # additional iterations of the event loop, because a busy loop may not have read the socket yet
MAX_HEADER_BYTES = 16 * 1024
BODY_SECONDS = 10.0
MAX_BODY_BYTES = 64 * 1024
UNREAD_SECONDS = 10.0
MAX_CONCURRENT_REQUESTS = 8
KEEP_ALIVE_SECONDS = 5
CLOSE_SECONDS = 1


class LimitedProtocol(H11Protocol):
    """A connection that is closed if its client is slow or does not read, or to make room for another connection."""

    _header_deadline: asyncio.TimerHandle | None = None
    _unread_deadline: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    _answered_at = 0.0
    _gave_way = False
    _is_settled = False
    _settling: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called when a client connects: also start the header timeout, and enforce the limit of connections."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # pause_writing is called for any bytes that the client has not read
        self._answered_at = self.loop.time()
        self._settling = self.loop.call_later(GRACE_SECONDS, self._settle, GRACE_TURNS)
        self._make_room()
        self._expect_header()

    def data_received(self, data: bytes) -> None:
        """Called when the client sends data: also start the timeout of a header that is incomplete."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, despite its type
        if cycle is not None and not cycle.response_complete:
            self._header_arrived()
        elif self._header_deadline is None:
            self._expect_header()

    def on_response_complete(self) -> None:
        """Called when a response is complete: also cancel the header timeout. uvicorn's keep-alive timeout follows."""
        self._answered_at = self.loop.time()
        super().on_response_complete()
        self._header_arrived()

    def send_400_response(self, msg: str) -> None:
        """Called when a request is malformed: send status 400, and prevent a response of the app to the same request.

        If the app's response has already started, which uvicorn does not check, close the connection.
        """
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.abort()
                return
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # a response to HEAD must not have a body; its status was sent
            self.transport.close()

    def pause_writing(self) -> None:
        """Called when the client has not read the response yet: also start the timeout for reading."""
        super().pause_writing()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._unread_deadline = self.loop.call_later(UNREAD_SECONDS, self._give_up_unread)

    def resume_writing(self) -> None:
        """Called when the client has read everything: also end the timeout for reading."""
        super().resume_writing()
        self._all_read()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection has ended: also cancel all timers."""
        self._header_arrived()
        self._all_read()
        if self._settling is not None:
            self._settling.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """Close another connection if there are more connections than the limit.

        The connection that has waited longest for its client, to send or to read, is closed first. So a client that
        sends its request at once, as a probe does, gets its response before its connection could be closed. A new
        connection is not closed before it is settled (`_settle`), unless more than twice the limit are open.
        Connections that are already closing do not count, although uvicorn counts them until they are lost.
        """
        held = [one for one in self.connections if isinstance(one, LimitedProtocol) and not one._gave_way]
        limit = connection_limit()
        if len(held) <= limit:
            return
        log.warning("http.connections_full", limit=limit)
        settled = [one for one in held if one._is_settled]
        if not any(one._is_idle for one in settled):
            if len(held) <= 2 * limit:
                return
            settled = [one for one in held if one is not self]
        first = min(settled, key=lambda one: (not one._is_idle, one._answered_at))
        first._gave_way = True
        first.transport.abort()

    def _settle(self, turns: int) -> None:
        """After `turns` iterations of the event loop, allow the server to close this connection, and make room."""
        if turns:
            self.loop.call_soon(self._settle, turns - 1)
            return
        self._is_settled = True
        self._make_room()

    @property
    def _is_idle(self) -> bool:
        """Whether the server waits for the client to send a request or to read a response."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        return cycle.more_body or self.flow.write_paused

    def _expect_header(self) -> None:
        self._header_deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _header_arrived(self) -> None:
        if self._header_deadline is not None:
            self._header_deadline.cancel()
            self._header_deadline = None

    def _give_up_unread(self) -> None:
        """Close the connection. If the client has read a part of the response since the last call, its network may be
        slow: wait again.
        """
        left = self.transport.get_write_buffer_size()
        if left < self._unread_bytes:
            self._unread_bytes = left
            self._unread_deadline = self.loop.call_later(UNREAD_SECONDS, self._give_up_unread)
        else:
            self.transport.abort()

    def _all_read(self) -> None:
        if self._unread_deadline is not None:
            self._unread_deadline.cancel()
            self._unread_deadline = None


def connection_limit() -> int:
    """Return the maximum number of connections. Brokers and handlers need descriptors too."""
    return min(MAX_CONNECTIONS, listener.http_descriptor_limit())


class RequestLimits:
    """ASGI middleware that reads the whole body before it calls the app. The body must be small and arrive in time."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond 408, 413 or 431 if a limit is exceeded, and 400 if the request has two headers for the body's length.
        An incomplete request has no effect.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in headers}:
            # A proxy and this server may use different headers, and so disagree where the next request begins.
            await _refuse(send, 400, b"both Content-Length and Transfer-Encoding\n")
            return
        if sum(len(name) + len(value) + 4 for name, value in headers) + len(scope["raw_path"]) > MAX_HEADER_BYTES:
            await _refuse(send, 431, b"the header is larger than 16 KiB\n")
            return
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(headers, receive)
        except TimeoutError:
            await _refuse(send, 408, b"the body took longer than 10 s\n")
            return
        except _CutShort:
            return
        if body is None:
            await _refuse(send, 413, b"the body is larger than 64 KiB\n")
            return
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(_in_origin_form(scope), replay, send)


class RequestQueue:
    """ASGI middleware that processes only a few requests at once, so that many requests do not delay /livez.

    A request's turn ends when its response starts, so a client that does not read its response delays no other client.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app when it is this request's turn. /livez and POST requests, such as a reload, do not wait."""
        if scope["type"] != "http" or scope["path"] == "/livez" or scope["method"] == "POST":
            await self._app(scope, receive, send)
            return
        await self._turns.acquire()
        holds_turn = True

        def end_turn() -> None:
            nonlocal holds_turn
            if holds_turn:
                holds_turn = False
                self._turns.release()

        async def send_after_turn(message: Message) -> None:
            end_turn()
            await send(message)

        try:
            await self._app(scope, receive, send_after_turn)
        finally:
            end_turn()


def _in_origin_form(scope: Scope) -> Scope:
    """Return the request with a path as its target: `GET http://host/path` becomes `GET /path` with `Host: host`."""
    raw_path: bytes = scope["raw_path"]
    if not raw_path.lower().startswith((b"http://", b"https://")):
        return scope
    try:
        target = urlsplit(raw_path.decode("ascii"))
    except ValueError:
        return scope
    headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
    headers.append((b"host", target.netloc.encode("ascii")))
    path = target.path or "/"
    return {**scope, "path": unquote(path), "raw_path": path.encode("ascii"), "headers": headers}


class _CutShort(Exception):
    """The connection ended, or the body was found malformed, before the whole body was read."""


async def _read_body(headers: list[tuple[bytes, bytes]], receive: Receive) -> bytes | None:
    """Return the body; None if it is too large. Raises _CutShort."""
    given = dict(headers)
    length = int(given.get(b"content-length", b"0"))
    if length > MAX_BODY_BYTES:
        return None
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            if length or b"transfer-encoding" in given:
                raise _CutShort
            return b""  # the request was complete without a body
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
        """Do nothing: the daemon handles signals."""
        yield


class HttpServer:
    """Serves an ASGI app on a listening socket."""

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        config = uvicorn.Config(
            RequestLimits(RequestQueue(app)),
            http=LimitedProtocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=connection_limit(),
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
        """Accept no more connections, wait up to a second for running responses, and end."""
        self._server.should_exit = True
