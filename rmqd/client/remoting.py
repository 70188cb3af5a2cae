"""Requests by address: opens connections when they are needed, one for each address, and keeps them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine

import structlog

from rmqd.client.breaker import Breakers
from rmqd.client.connection import RemotingConnection
from rmqd.client.connector import RENEWED, Connector
from rmqd.client.options import ClientOptions
from rmqd.client.security import Security
from rmqd.client.traffic import Traffic
from rmqd.codes import ResponseCode
from rmqd.errors import (
    ConnectionRenewedError,
    RemotingClosedError,
    RemotingConnectError,
    RemotingTimeoutError,
    RmqdError,
    TlsError,
)
from rmqd.wire.command import RemotingCommand, encode_response
from rmqd.wire.frame import MAX_FRAME_SIZE_BYTES

log = structlog.get_logger(__name__)

REQUEST_TIMEOUT_SECONDS = 3.0  # Java: mqClientApiTimeout
CLOSE_SECONDS = 1.0  # for peers to say that they heard of the end, as TLS wants
SILENCE_SECONDS = 2.0  # a peer that was sent a request, and said nothing for so long, is no longer waited for

Reply = tuple[int, str, dict[str, str], bytes]  # code, remark, ext fields, body
RequestHandler = Callable[[RemotingCommand, str], Awaitable[Reply | None]]


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
        self._breakers = Breakers(lambda: asyncio.get_running_loop().time())
        self._connector = Connector(self.security, self._breakers, self._new_connection)
        self._connections: dict[str, RemotingConnection] = {}
        self._opening: dict[str, asyncio.Task[RemotingConnection]] = {}
        self._handlers: dict[int, RequestHandler] = {}
        self._opened: list[Callable[[str], None]] = []
        self._lost: list[Callable[[str, str], None]] = []
        self._silent: list[Callable[[str], None]] = []
        self._answering: set[asyncio.Task[None]] = set()
        self._explaining: dict[str, asyncio.Task[None]] = {}
        self._kept: set[asyncio.Task[None]] = set()
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

    def on_silence(self, callback: Callable[[str], None]) -> None:
        """Call `callback(address)` whenever a peer did not answer, nor sent anything else meanwhile."""
        self._silent.append(callback)

    def is_down(self, address: str) -> bool:
        """Whether no connection could be made, or nothing was heard on it, and no answer has come since."""
        return self._breakers.is_open(address)

    def why_down(self, address: str) -> str | None:
        """How that failed; None for an address that is not down."""
        return self._breakers.reason(address)

    def check(self, address: str) -> None:
        """Raise CircuitOpenError, or TlsError, for an address that is down: for requests that may wait long."""
        self._breakers.check_answers(address)

    async def invoke(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, str],
        body: bytes = b"",
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> RemotingCommand:
        """Send a request and return its reply, whatever its code; the time to connect counts for itself.

        While a peer is silent, one request at a time finds out whether it still is, and the others fail at once. A peer
        that says GO_AWAY has not looked at the request: it is sent once more, by another connection.
        """
        if (credentials := self.security.credentials) is not None:
            ext_fields = credentials.signed(ext_fields, body)
        reply = await self._invoke_once(address, code, ext_fields, body, timeout_seconds)
        if reply.code == ResponseCode.GO_AWAY:
            reply = await self._invoke_once(address, code, ext_fields, body, timeout_seconds)
        return reply

    async def _invoke_once(
        self, address: str, code: int, ext_fields: dict[str, str], body: bytes, timeout_seconds: float
    ) -> RemotingCommand:
        connection = self._connections.get(address) or await self.connection(address)
        with self._breakers.probe(address) if connection.is_suspect else contextlib.nullcontext():
            reply = await self._invoke(connection, code, ext_fields, body, timeout_seconds)
        if reply.code == ResponseCode.GO_AWAY:
            self.leave(connection, "the peer says that it goes away")
        return reply

    async def _invoke(
        self,
        connection: RemotingConnection,
        code: int,
        ext_fields: dict[str, str],
        body: bytes,
        timeout_seconds: float,
    ) -> RemotingCommand:
        started = asyncio.get_running_loop().time()
        try:
            return await connection.invoke(code, ext_fields, body, timeout_seconds)
        except (RemotingTimeoutError, asyncio.CancelledError):  # the latter by a deadline of who asks
            seconds = asyncio.get_running_loop().time() - started
            if seconds >= SILENCE_SECONDS and connection.heard_at < started and connection.is_open:
                self._heard_nothing(connection, seconds)
            raise

    def _heard_nothing(self, connection: RemotingConnection, seconds: float) -> None:
        """A peer took a request and did not answer, though it had time enough."""
        address = connection.address
        connection.is_suspect = True
        self._breakers.failed(
            address, RemotingTimeoutError(address, f"it takes requests and is silent for {seconds:.1f} s")
        )
        for callback in self._silent:
            callback(address)

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
            await asyncio.wait([explaining])
        if (opening := self._opening.get(address)) is None:
            self._breakers.check_rest(address)
            opening = asyncio.create_task(self._open(address), name=f"connect:{address}")
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opening_ended(address, task))
        # one caller's cancellation must not end the attempt that others wait for
        return await asyncio.shield(opening)

    def disconnect(self, address: str, reason: str) -> None:
        """Close the connection to an address, if there is one."""
        if (connection := self._connections.get(address)) is not None:
            connection.close(reason)

    def leave(self, connection: RemotingConnection, reason: str) -> None:
        """Send nothing more by this connection, and close it once what is under way has had time for its answer."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            log.info("connection.left", address=connection.address, reason=reason)
            self._keep(self._end(connection, reason), f"leave:{connection.address}")

    def give_up(self, address: str, reason: str) -> None:
        """Forget an address at which nobody is to be asked any more; what waits for it fails with
        ConnectionRenewedError: it can be asked elsewhere, at once."""
        self._breakers.answered(address)
        if (connection := self._connections.pop(address, None)) is not None:
            connection.fail_waiting(lambda: ConnectionRenewedError(address, reason))
            connection.close(reason)

    def called(self, address: str, host: str) -> None:
        """A numeric address is that of this host, for which its certificate is to be."""
        self._connector.called(address, host)

    def secure(self, options: ClientOptions) -> None:
        """Go by other keys and certificates from now on; other TLS settings than before make connections anew."""
        must_renew = self.security.change(options)
        self._connector.start_anew()
        if not must_renew:
            return
        for connection in list(self._connections.values()):
            self._keep(self._renew(connection), f"renew:{connection.address}")

    def _keep(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run what `close` ends."""
        task = asyncio.create_task(work, name=name)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def _renew(self, old: RemotingConnection) -> None:
        """Take the successor first, so that the broker hears from us before it could tell others that we left."""
        address = old.address
        try:
            successor = await self._connector.connect(address)
        except RemotingConnectError as error:
            log.debug("connection.not_renewed", address=address, error=str(error))
            if self._connections.get(address) is old:
                del self._connections[address]
        else:
            if self._connections.get(address) is not old:  # lost meanwhile, and perhaps replaced
                successor.close(RENEWED)
                return
            self._connections[address] = successor
            for callback in self._opened:
                callback(address)
        await self._end(old, RENEWED)

    async def _end(self, connection: RemotingConnection, reason: str) -> None:
        await connection.finished(REQUEST_TIMEOUT_SECONDS)
        connection.fail_waiting(lambda: ConnectionRenewedError(connection.address, reason))
        connection.close(reason)

    async def close(self) -> None:
        """Close every connection and wait for what they had under way."""
        self._closed = True
        tasks = [*self._opening.values(), *self._answering, *self._explaining.values(), *self._kept]
        for task in tasks:
            task.cancel()
        connections = list(self._connections.values())
        for connection in connections:
            connection.close("the client was closed")
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(connection.ended(CLOSE_SECONDS) for connection in connections))

    async def _open(self, address: str) -> RemotingConnection:
        connection = await self._connector.connect(address)
        connection.is_suspect = self._breakers.is_silent(address)
        self._connections[address] = connection
        for callback in self._opened:
            callback(address)
        return connection

    def _new_connection(self, address: str) -> RemotingConnection:
        return RemotingConnection(
            address,
            max_frame_size_bytes=self._max_frame_size,
            traffic=self.traffic,
            on_request=self._asked,
            on_lost=self._connection_lost,
            on_answer=lambda connection: self._breakers.answered(connection.address),
            refusals=self.security.refusals,
        )

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

    async def _explain(self, connection: RemotingConnection) -> None:
        """Tell those who wait for answers why the connection was closed."""
        address, error = connection.address, None
        try:
            error = await self._connector.why_lost(connection)
        finally:
            if error is None:
                connection.fail_waiting(lambda: RemotingClosedError(address, connection.close_reason))
            else:
                reason = error.reason
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
