"""Requests by address: opens connections when they are needed, one for each address, and keeps them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import structlog

from rmqd.client.connection import RemotingConnection
from rmqd.client.options import ClientOptions
from rmqd.client.security import Security
from rmqd.client.tls import explain, why_closed
from rmqd.client.traffic import Traffic
from rmqd.codes import ResponseCode
from rmqd.errors import (
    ConnectionRenewedError,
    RemotingClosedError,
    RemotingConnectError,
    RmqdError,
    TlsError,
    TlsFileError,
)
from rmqd.wire.command import RemotingCommand, encode_response
from rmqd.wire.frame import MAX_FRAME_SIZE_BYTES

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_SECONDS = 3.0  # Java: connectTimeoutMillis
TLS_CONNECT_TIMEOUT_SECONDS = 6.0  # a handshake takes both ends some CPU time
TLS_SHUTDOWN_SECONDS = 1.0  # for the peer's good-bye; what waits for an answer must not wait longer for its failure
REQUEST_TIMEOUT_SECONDS = 3.0  # Java: mqClientApiTimeout
BACKOFF_FIRST_SECONDS = 0.1
BACKOFF_MOST_SECONDS = 5.0
ASK_AGAIN_SECONDS = 60.0  # why a server closes connections is found out by making more of them
RENEWED = "the TLS settings are others now"

Reply = tuple[int, str, dict[str, str], bytes]  # code, remark, ext fields, body
RequestHandler = Callable[[RemotingCommand, str], Awaitable[Reply | None]]


class _Backoff:
    """Keeps a dead address from being called again and again by everybody who needs it."""

    __slots__ = ("failures", "kind", "reason", "until")

    def __init__(self) -> None:
        self.failures = 0
        self.until = 0.0
        self.kind = RemotingConnectError
        self.reason = ""

    def failed(self, now: float, error: RemotingConnectError) -> None:
        self.failures += 1
        delay = min(BACKOFF_FIRST_SECONDS * 2**self.failures, BACKOFF_MOST_SECONDS)
        self.until = now + delay * random.uniform(0.5, 1.0)
        self.kind, self.reason = type(error), error.reason


class _Found(NamedTuple):
    """Why an address closes connections, as far as that could be found out, and how long that counts."""

    reason: str | None
    until: float


class RemotingClient:
    """Speaks to any number of addresses ("host:port"), by the keys and the TLS settings in `security`.

    `invoke` raises RemotingConnectError, RemotingTimeoutError or RemotingClosedError; a reply with an error code is
    returned like any other. Requests of a peer go to the handlers set by `on_request`, in tasks that `close` ends.
    """

    def __init__(
        self,
        *,
        max_frame_size_bytes: int = MAX_FRAME_SIZE_BYTES,
        security: Security | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.security = security or Security()
        self._max_frame_size = max_frame_size_bytes
        self._server_names: dict[str, str] = {}
        self._found: dict[str, _Found] = {}
        self._connections: dict[str, RemotingConnection] = {}
        self._opening: dict[str, asyncio.Task[RemotingConnection]] = {}
        self._backoff: dict[str, _Backoff] = {}
        self._handlers: dict[int, RequestHandler] = {}
        self._opened: list[Callable[[str], None]] = []
        self._lost: list[Callable[[str, str], None]] = []
        self._answering: set[asyncio.Task[None]] = set()
        self._explaining: dict[str, asyncio.Task[None]] = {}
        self._renewing: set[asyncio.Task[None]] = set()
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
        if (credentials := self.security.credentials) is not None:
            ext_fields = credentials.signed(ext_fields, body)
        return await connection.invoke(code, ext_fields, body, timeout_seconds)

    async def invoke_oneway(self, address: str, code: int, ext_fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request that is not answered."""
        connection = self._connections.get(address) or await self.connection(address)
        if (credentials := self.security.credentials) is not None:
            ext_fields = credentials.signed(ext_fields, body)
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
        if (explaining := self._explaining.get(address)) is not None:
            await asyncio.shield(explaining)
        if (opening := self._opening.get(address)) is None:
            backoff = self._backoff.get(address)
            if backoff is not None and asyncio.get_running_loop().time() < backoff.until:
                raise backoff.kind(address, backoff.reason)
            opening = asyncio.create_task(self._open(address), name=f"connect:{address}")
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opening_ended(address, task))
        # one caller's cancellation must not end the attempt that others wait for
        return await asyncio.shield(opening)

    def disconnect(self, address: str, reason: str) -> None:
        """Close the connection to an address, if there is one."""
        if (connection := self._connections.get(address)) is not None:
            connection.close(reason)

    def called(self, address: str, host: str) -> None:
        """A numeric address is that of this host, for which its certificate is to be."""
        self._server_names[address] = host

    def secure(self, options: ClientOptions) -> None:
        """Go by other keys and certificates from now on; other TLS settings than before make connections anew."""
        must_renew = self.security.change(options)
        self._backoff.clear()
        self._found.clear()
        if not must_renew:
            return
        for connection in list(self._connections.values()):
            task = asyncio.create_task(self._renew(connection), name=f"renew:{connection.address}")
            self._renewing.add(task)
            task.add_done_callback(self._renewing.discard)

    async def _renew(self, old: RemotingConnection) -> None:
        """Take the successor first, so that the broker hears from us before it could tell others that we left."""
        address = old.address
        try:
            successor = await self._connect(address)
        except RemotingConnectError as error:
            log.debug("connection.not_renewed", address=address, error=str(error))
            old.close(RENEWED)
            return
        if self._connections.get(address) is not old:  # lost meanwhile, and perhaps replaced
            successor.close(RENEWED)
            return
        self._connections[address] = successor
        for callback in self._opened:
            callback(address)
        await old.finished(REQUEST_TIMEOUT_SECONDS)
        old.fail_waiting(lambda: ConnectionRenewedError(address, RENEWED))
        old.close(RENEWED)

    async def close(self) -> None:
        """Close every connection and wait for what they had under way."""
        self._closed = True
        tasks = [*self._opening.values(), *self._answering, *self._explaining.values(), *self._renewing]
        for task in tasks:
            task.cancel()
        for connection in list(self._connections.values()):
            connection.close("the client was closed")
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _open(self, address: str) -> RemotingConnection:
        connection = await self._connect(address)
        self._connections[address] = connection
        for callback in self._opened:
            callback(address)
        return connection

    async def _connect(self, address: str) -> RemotingConnection:
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        server_name = self.security.tls.server_name or self._server_names.get(address, host)
        try:
            context = self.security.context()
            async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS if context is None else TLS_CONNECT_TIMEOUT_SECONDS):
                _, connection = await loop.create_connection(
                    lambda: RemotingConnection(
                        address,
                        max_frame_size_bytes=self._max_frame_size,
                        traffic=self.traffic,
                        on_request=self._asked,
                        on_lost=self._connection_lost,
                        refusals=self.security.refusals,
                    ),
                    host,
                    int(port),
                    ssl=context,
                    server_hostname=None if context is None else server_name,
                    ssl_shutdown_timeout=None if context is None else TLS_SHUTDOWN_SECONDS,
                )
        except TlsFileError as error:
            raise self._failed(address, TlsError(address, str(error))) from error
        except (OSError, TimeoutError, ValueError, OverflowError) as error:  # the last: a port above 65535
            if (reason := await self._tls_reason(error, host, port, server_name)) is not None:
                raise self._failed(address, TlsError(address, reason)) from error
            raise self._failed(address, RemotingConnectError(address, _connect_reason(error))) from error
        if not connection.is_open:
            if (reason := await self._why_lost(connection)) is not None:
                raise self._failed(address, TlsError(address, reason))
            raise RemotingConnectError(address, connection.close_reason)
        self._backoff.pop(address, None)
        return connection

    async def _tls_reason(self, error: Exception, host: str, port: str, server_name: str) -> str | None:
        """What an attempt to connect failed of, where that has to do with TLS."""
        if not self.security.tls.enabled:
            return None
        if isinstance(error, ConnectionResetError):  # in the middle of a handshake, so somebody is there
            return (
                await why_closed(host, int(port), with_tls=True)
                or "the peer closed the connection during the handshake"
            )
        return explain(error, server_name)

    def _failed(self, address: str, error: RemotingConnectError) -> RemotingConnectError:
        """Let nobody try again at once; gives the error back."""
        self._backoff.setdefault(address, _Backoff()).failed(asyncio.get_running_loop().time(), error)
        if isinstance(error, TlsError):
            self.security.refusals.refused(address, str(error), is_trust=True)
        return error

    def _opening_ended(self, address: str, task: asyncio.Task[RemotingConnection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # every waiter may have gone; nobody is to be told then

    def _connection_lost(self, connection: RemotingConnection) -> None:
        address = connection.address
        is_current = self._connections.get(address) is connection
        if is_current:
            del self._connections[address]
        if is_current and not connection.was_answered and not self._closed:
            task = asyncio.create_task(self._explain(connection), name=f"why was {address} closed")
            self._explaining[address] = task
            task.add_done_callback(lambda _: self._explaining.pop(address, None))
        else:
            connection.fail_waiting(lambda: RemotingClosedError(address, connection.close_reason))
        for callback in self._lost:
            callback(address, connection.close_reason)

    async def _why_lost(self, connection: RemotingConnection) -> str | None:
        """A server that closes a connection without a word may have wanted TLS, or a certificate."""
        if connection.error is not None and (reason := explain(connection.error, connection.address)) is not None:
            return reason
        address, now = connection.address, asyncio.get_running_loop().time()
        found = self._found.get(address)
        if found is None or now >= found.until:
            host, _, port = address.rpartition(":")
            reason = await why_closed(host.strip("[]"), int(port), with_tls=self.security.tls.enabled)
            found = self._found[address] = _Found(reason, now + ASK_AGAIN_SECONDS)
        return found.reason

    async def _explain(self, connection: RemotingConnection) -> None:
        """Tell those who wait for answers why the connection was closed."""
        address, reason = connection.address, None
        try:
            reason = await self._why_lost(connection)
        finally:
            if reason is None:
                connection.fail_waiting(lambda: RemotingClosedError(address, connection.close_reason))
            else:
                self._failed(address, TlsError(address, reason))
                connection.fail_waiting(lambda: TlsError(address, reason))

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
