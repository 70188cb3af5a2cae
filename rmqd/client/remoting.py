"""Requests by address: opens connections when they are needed, one for each address, and keeps them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable

import structlog

from rmqd.client.connection import RemotingConnection
from rmqd.client.traffic import Traffic
from rmqd.codes import ResponseCode
from rmqd.errors import RemotingConnectError, RmqdError
from rmqd.wire.command import RemotingCommand, encode_response
from rmqd.wire.frame import MAX_FRAME_SIZE_BYTES

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_SECONDS = 3.0  # Java: connectTimeoutMillis
REQUEST_TIMEOUT_SECONDS = 3.0  # Java: mqClientApiTimeout
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MOST_SECONDS = 5.0

Reply = tuple[int, str, dict[str, str], bytes]  # code, remark, ext fields, body
RequestHandler = Callable[[RemotingCommand, str], Awaitable[Reply | None]]


class _Backoff:
    """Keeps a dead address from being called again and again by everybody who needs it."""

    __slots__ = ("error", "failures", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0
        self.error = ""

    def failed(self, now: float, error: str) -> None:
        self.failures += 1
        delay = min(BACKOFF_FIRST_SECONDS * 2**self.failures, BACKOFF_MOST_SECONDS)
        self.until = now + delay * random.uniform(0.5, 1.0)
        self.error = error


class RemotingClient:
    """Speaks to any number of addresses ("host:port").

    `invoke` raises RemotingConnectError, RemotingTimeoutError or RemotingClosedError; a reply with an error code is
    returned like any other. Requests of a peer go to the handlers set by `on_request`, in tasks that `close` ends.
    """

    def __init__(
        self,
        *,
        max_frame_size_bytes: int = MAX_FRAME_SIZE_BYTES,
        sign: Callable[[dict[str, str], bytes], dict[str, str]] | None = None,
    ) -> None:
        self.traffic = Traffic()
        self._max_frame_size = max_frame_size_bytes
        self._sign = sign
        self._connections: dict[str, RemotingConnection] = {}
        self._opening: dict[str, asyncio.Task[RemotingConnection]] = {}
        self._backoff: dict[str, _Backoff] = {}
        self._handlers: dict[int, RequestHandler] = {}
        self._opened: list[Callable[[str], None]] = []
        self._lost: list[Callable[[str, str], None]] = []
        self._answering: set[asyncio.Task[None]] = set()
        self._closed = False

    def on_request(self, code: int, handler: RequestHandler) -> None:
        """Let `handler(command, address)` answer the peers' requests with this code; None for a one-way request."""
        self._handlers[code] = handler

    def on_open(self, callback: Callable[[str], None]) -> None:
        """Call `callback(address)` whenever a connection was made."""
        self._opened.append(callback)

    def on_lost(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(address, reason)` whenever a connection was lost."""
        self._lost.append(callback)

    async def invoke(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, str],
        body: bytes = b"",
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> RemotingCommand:
        """Send a request and return its reply, whatever its code; the time to connect counts for itself."""
        connection = self._connections.get(address) or await self.connection(address)
        if self._sign is not None:
            ext_fields = self._sign(ext_fields, body)
        return await connection.invoke(code, ext_fields, body, timeout_seconds)

    async def invoke_oneway(self, address: str, code: int, ext_fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request that is not answered."""
        connection = self._connections.get(address) or await self.connection(address)
        if self._sign is not None:
            ext_fields = self._sign(ext_fields, body)
        await connection.invoke_oneway(code, ext_fields, body)

    def connected(self, address: str) -> RemotingConnection | None:
        """The open connection to an address, if there is one."""
        return self._connections.get(address)

    async def connection(self, address: str) -> RemotingConnection:
        """The open connection to an address, made if need be; whoever asks meanwhile shares the attempt."""
        if (connection := self._connections.get(address)) is not None:
            return connection
        if self._closed:
            raise RemotingConnectError(address, "the client is closed")
        if (opening := self._opening.get(address)) is None:
            backoff = self._backoff.get(address)
            if backoff is not None and asyncio.get_running_loop().time() < backoff.until:
                raise RemotingConnectError(address, backoff.error)
            opening = asyncio.create_task(self._open(address), name=f"connect:{address}")
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opening_ended(address, task))
        # one caller's cancellation must not end the attempt that others wait for
        return await asyncio.shield(opening)

    def disconnect(self, address: str, reason: str) -> None:
        """Close the connection to an address, if there is one."""
        if (connection := self._connections.get(address)) is not None:
            connection.close(reason)

    async def close(self) -> None:
        """Close every connection and wait for what they had under way."""
        self._closed = True
        tasks = [*self._opening.values(), *self._answering]
        for task in tasks:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.close("the client was closed")
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self, address: str) -> RemotingConnection:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: RemotingConnection(
                        address,
                        max_frame_size_bytes=self._max_frame_size,
                        traffic=self.traffic,
                        on_request=self._asked,
                        on_lost=self._connection_lost,
                    ),
                    host.strip("[]"),
                    int(port),
                )
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # the last: a port above 65535
            reason = _connect_reason(error)
            self._backoff.setdefault(address, _Backoff()).failed(loop.time(), reason)
            raise RemotingConnectError(address, reason) from error
        if not connection.is_open:
            raise RemotingConnectError(address, connection.close_reason)
        self._backoff.pop(address, None)
        self._connections[address] = connection
        for callback in self._opened:
            callback(address)
        return connection

    def _opening_ended(self, address: str, task: asyncio.Task[RemotingConnection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # every waiter may have gone; nobody is to be told then

    def _connection_lost(self, connection: RemotingConnection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
        for callback in self._lost:
            callback(connection.address, connection.close_reason)

    def _asked(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        task = asyncio.create_task(self._answer(connection, command), name=f"answer:{command.code}")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        reply: Reply | None
        handler = self._handlers.get(command.code)
        if handler is None:
            log.warning("request.unsupported", code=int(command.code), address=connection.address)
            remark = f"request type {command.code} not supported"
            reply = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark, {}, b"")
        else:
            try:
                reply = await handler(command, connection.address)
            except RmqdError as error:
                log.warning("request.refused", code=int(command.code), address=connection.address, error=str(error))
                reply = (ResponseCode.SYSTEM_ERROR, str(error), {}, b"")
            except Exception as error:  # our fault, but the peer waits for an answer
                log.exception("request.failed", code=int(command.code), address=connection.address)
                reply = (ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}", {}, b"")
        if reply is not None and not command.is_oneway and connection.is_open:
            connection.write(encode_response(command, *reply))


def _connect_reason(error: BaseException) -> str:
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)  # asyncio's own text repeats the address
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or f"no connection within {CONNECT_TIMEOUT_SECONDS:g} s"
