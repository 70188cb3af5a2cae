"""Requests by address. Connections, one for each address, are opened on demand and kept.

Requests that brokers send to this client, and its responses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.connection import OPAQUE, RemotingConnection
from rmqd.client.remoting.connection_pool import ConnectionPool
from rmqd.client.remoting.connector import Breakers
from rmqd.client.remoting.pending import Traffic
from rmqd.client.remoting.security import Security
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError, RemotingError, RemotingTimeoutError, RmqdError
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.wire.command import RemotingCommand, encode_request, encode_response

log = structlog.get_logger(__name__)

Reply = tuple[int, str, dict[str, str], bytes]  # code, remark, ext fields, body
RequestHandler = Callable[[RemotingCommand, str], Awaitable[Reply | None]]
NoticeHandler = Callable[[RemotingCommand, str], None]

MOST_AT_ONCE: Final = 64  # requests of one peer that are handled concurrently
REPLY_SECONDS: Final = 3.0  # limit for writing a response to the socket


class PeerRequests:
    """Answers each request with the handler of its code, in tasks that `close` cancels.

    At most MOST_AT_ONCE requests of a connection are answered at once; others are rejected. A response is dropped if
    the peer does not read it in time. So a peer uses limited memory, whatever it sends.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, RequestHandler] = {}
        self._notices: dict[int, NoticeHandler] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._under_way: Counter[RemotingConnection] = Counter()

    def on_request(self, code: int, handler: RequestHandler) -> None:
        """Answer requests with this code by `handler(command, address)`, which returns None for one-way requests."""
        self._handlers[code] = handler

    def on_notice(self, code: int, handler: NoticeHandler) -> None:
        """Call `handler(command, address)` for requests that need no response. It must not block or raise."""
        self._notices[code] = handler

    def asked(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        """Answer a request of a connection, in a separate task."""
        if (notice := self._notices.get(command.code)) is not None:
            notice(command, connection.address)
            return
        if self._under_way[connection] >= MOST_AT_ONCE:
            self._turn_away(connection, command)
            return
        self._under_way[connection] += 1
        task = asyncio.create_task(self._answer(connection, command), name=f"answer:{command.code}")
        self._answering.add(task)
        task.add_done_callback(lambda task: self._answered(connection, task))

    def _answered(self, connection: RemotingConnection, task: asyncio.Task[None]) -> None:
        self._answering.discard(task)
        self._under_way[connection] -= 1
        if not self._under_way[connection]:
            del self._under_way[connection]

    def _turn_away(self, connection: RemotingConnection, command: RemotingCommand) -> None:
        log.warning("request.turned_away", code=int(command.code), address=connection.address, at_once=MOST_AT_ONCE)
        if connection.is_open and connection.is_read and not command.is_oneway:
            remark = f"{MOST_AT_ONCE} of your requests are being answered; try again later"
            connection.write(encode_response(command, ResponseCode.SYSTEM_BUSY, remark))

    async def close(self) -> None:
        """Cancel all answers."""
        tasks = list(self._answering)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

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
            except Exception as error:  # a bug in rmqd; respond anyway, because the peer waits
                log.exception("request.failed", code=int(command.code), address=connection.address)
                reply = (ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}", {}, b"")
        if reply is None or command.is_oneway:
            return
        with contextlib.suppress(RemotingError):  # the peer has gone, or does not read
            await connection.drained(REPLY_SECONDS)
            connection.write(encode_response(command, *reply))


__all__ = ["RemotingClient", "Reply", "RequestHandler"]

REQUEST_TIMEOUT_SECONDS = 3.0  # Java: mqClientApiTimeout
FRAME_SECONDS = 30.0  # limit for receiving one frame; no request waits longer for its response
SILENCE_SECONDS = 2.0  # a peer with an unanswered request that sends nothing for so long counts as silent


class RemotingClient:
    """Sends requests to any number of addresses ("host:port"), with the keys and TLS settings in the options.

    `invoke` raises RemotingConnectError, RemotingTimeoutError or RemotingClosedError; a response with an error code is
    returned like any other. Requests of a peer go to the handlers set by `on_request`, in tasks that `close` cancels.

    Silence. A timeout alone proves little: the broker may be slow with this one request. A peer counts as silent if a
    request waited `SILENCE_SECONDS` or more and no byte was received on the connection meanwhile. Then the connection
    is suspect, and the breaker opens: requests fail at once, except for one at a time, the probe, which uses a second
    connection (`ConnectionPool.to_probe` says why). The first byte on either connection ends the silence. A frame that
    does not end within `FRAME_SECONDS` is not silence, but equally useless: its length may be damaged, so that it
    swallows all responses. Such a connection is closed.

    GO_AWAY. A broker that shuts down gracefully responds with this code, which says that it did not process the
    request. No further request uses that connection, requests in flight get time for their responses, and the request
    is repeated on a new connection: behind a proxy that may be another broker.
    """

    def __init__(self, options: ClientOptions | None = None, clock: Clock | None = None) -> None:
        options = options or ClientOptions()
        self.clock: Clock = clock or SystemClock()
        self.traffic = Traffic()
        self.security = Security(options, self.clock)
        self._max_frame_size = options.max_frame_size_bytes
        self._breakers = Breakers(self.clock)
        self._pool = ConnectionPool(self.security, self._breakers, self._new_connection, self.clock)
        self._peer_requests = PeerRequests()
        self._silent: list[Callable[[str], None]] = []

    def on_request(self, code: int, handler: RequestHandler) -> None:
        """Answer peers' requests with this code by `handler(command, address)`, which returns None if one-way."""
        self._peer_requests.on_request(code, handler)

    def on_notice(self, code: int, handler: NoticeHandler) -> None:
        """Call `handler(command, address)` for the peers' requests with this code, which need no response."""
        self._peer_requests.on_notice(code, handler)

    def on_open(self, callback: Callable[[str], None]) -> None:
        """Call `callback(address)` whenever a new connection starts to serve an address."""
        self._pool.opened.append(callback)

    def on_lost(self, callback: Callable[[str, str], None]) -> None:
        """Call `callback(address, reason)` whenever a connection has ended."""
        self._pool.lost.append(callback)

    def on_silence(self, callback: Callable[[str], None]) -> None:
        """Call `callback(address)` whenever a peer becomes silent: it sent nothing while a request waited."""
        self._silent.append(callback)

    def is_down(self, address: str) -> bool:
        """Return whether no connection could be made, or the peer was silent, without a response since."""
        return self._breakers.is_open(address)

    def why_down(self, address: str) -> str | None:
        """Return the reason why an address is down; None if it is not down."""
        return self._breakers.reason(address)

    def rest_seconds(self, address: str) -> float:
        """Return for how many more seconds no request is sent to an address that is down."""
        return self._breakers.rest_seconds(address)

    def check(self, address: str) -> None:
        """Raise CircuitOpenError, or TlsError, if an address is down: for requests that may wait long."""
        self._breakers.check_answers(address)

    async def invoke(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, str],
        body: bytes = b"",
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> RemotingCommand:
        """Send a request and return its response, whatever its code.

        `timeout_seconds` begins when there is a connection; connecting has its own deadline. The class docstring
        describes requests to a silent peer, and requests that are answered by GO_AWAY.
        """
        ext_fields = self.security.signed(ext_fields, body)
        reply = await self._invoke_once(address, code, ext_fields, body, timeout_seconds)
        if reply.code == ResponseCode.GO_AWAY:
            reply = await self._invoke_once(address, code, ext_fields, body, timeout_seconds)
        return reply

    async def _invoke_once(
        self, address: str, code: int, ext_fields: dict[str, str], body: bytes, timeout_seconds: float
    ) -> RemotingCommand:
        connection = self._pool.get(address) or await self._pool.connection(address)
        if connection.is_suspect:
            with self._breakers.probe(address):
                connection = await self._pool.to_probe(address)
                reply = await self._invoke(connection, code, ext_fields, body, timeout_seconds)
        else:
            reply = await self._invoke(connection, code, ext_fields, body, timeout_seconds)
        if reply.code == ResponseCode.GO_AWAY:
            self._pool.leave(connection, "the peer shuts down (GO_AWAY)")
        return reply

    async def _invoke(
        self,
        connection: RemotingConnection,
        code: int,
        ext_fields: dict[str, str],
        body: bytes,
        timeout_seconds: float,
    ) -> RemotingCommand:
        started, reads = self.clock.monotonic(), connection.reads
        try:
            return await connection.invoke(code, ext_fields, body, timeout_seconds)
        except (RemotingTimeoutError, asyncio.CancelledError):  # the caller may have its own deadline
            now = self.clock.monotonic()
            seconds = now - started
            if connection.is_open and connection.frame_at is not None and now - connection.frame_at >= FRAME_SECONDS:
                # The frame's length may be damaged: it would swallow all following bytes with their responses.
                connection.corrupt(
                    ProtocolError(f"the frame is still incomplete after {now - connection.frame_at:.0f} s")
                )
            elif (
                seconds >= SILENCE_SECONDS
                and connection.reads == reads
                and self._pool.uses(connection)
                # a silent address counts as one failure, even if several requests expire
                and not self._breakers.failed_since(connection.address, started)
            ):
                self._note_silence(connection, seconds)
            raise

    def _note_silence(self, connection: RemotingConnection, seconds: float) -> None:
        """Record that a peer is silent: open its breaker, and call the `on_silence` callbacks."""
        address = connection.address
        connection.is_suspect = connection.had_timeout = True
        self._breakers.failed(
            address, RemotingTimeoutError(address, f"it accepts requests but has been silent for {seconds:.1f} s")
        )
        for callback in self._silent:
            callback(address)

    def call(
        self, connection: RemotingConnection, code: int, ext_fields: dict[str, str], timeout_seconds: float
    ) -> asyncio.Future[RemotingCommand]:
        """Send a request on this connection without waiting. The future gives the response, whatever its code.

        It fails as `RemotingConnection.call` says. A failure is not reported if nothing awaits the future.
        """
        opaque = next(OPAQUE)
        frame = encode_request(code, opaque, self.security.signed(ext_fields))
        return connection.call(code, opaque, frame, timeout_seconds)

    async def invoke_oneway(self, address: str, code: int, ext_fields: dict[str, str], body: bytes = b"") -> None:
        """Send a request that gets no response."""
        connection = self._pool.get(address) or await self._pool.connection(address)
        await connection.invoke_oneway(code, self.security.signed(ext_fields, body), body)

    def connected(self, address: str) -> RemotingConnection | None:
        """Return the open connection to an address, if there is one."""
        return self._pool.get(address)

    def ready(self, address: str) -> RemotingConnection | None:
        """Return the open connection to an address; None if there is none, or the address is down."""
        return None if self._breakers.is_open(address) else self._pool.get(address)

    async def connection(self, address: str) -> RemotingConnection:
        """Return the open connection to an address, or open one for all simultaneous callers."""
        return await self._pool.connection(address)

    def silent_seconds(self, address: str) -> float:
        """Return how long an address has sent nothing while a request waited for its response; 0 if none waits."""
        connection = self._pool.get(address)
        return 0.0 if connection is None else connection.silent_seconds

    def disconnect(self, address: str, reason: str) -> None:
        """Close the connection to an address, if there is one."""
        self._pool.disconnect(address, reason)

    def leave(self, connection: RemotingConnection, reason: str) -> None:
        """Send no more requests on this connection, and close it after requests in flight had time for responses."""
        self._pool.leave(connection, reason)

    def give_up(self, address: str, reason: str) -> None:
        """Stop using an address. Waiting requests fail with ConnectionRenewedError, so that callers ask another one."""
        self._pool.give_up(address, reason)

    def called(self, address: str, host: str) -> None:
        """Check the certificate of a numeric address against the host name that resolved to it."""
        self._pool.called(address, host)

    def secure(self, options: ClientOptions) -> None:
        """Use other keys and certificates from now on. If the TLS settings changed, every connection is replaced."""
        must_renew = self.security.change(options)
        self._pool.start_anew()
        if must_renew:
            self._pool.renew()

    async def close(self) -> None:
        """Close every connection, and wait for its tasks."""
        await asyncio.gather(self._peer_requests.close(), self._pool.close())

    def _new_connection(self, pool: ConnectionPool, address: str) -> RemotingConnection:
        return RemotingConnection(
            address,
            max_frame_size_bytes=self._max_frame_size,
            traffic=self.traffic,
            on_request=self._peer_requests.asked,
            on_lost=pool.ended,
            on_answer=pool.on_received,
            clock=self.clock,
            refusals=self.security.refusals,
        )
