"""Requests by address. Connections, one for each address, are opened on demand and kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.connection import OPAQUE_NUMBERS, RemotingConnection
from rmqd.client.remoting.connection_pool import ConnectionPool
from rmqd.client.remoting.pending import ResponseFuture
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError, RemotingTimeoutError
from rmqd.runtime.clock import Clock, SystemClock
from rmqd.runtime.plain_text import duration
from rmqd.wire.command import RemotingCommand, encode_request

REQUEST_TIMEOUT_SECONDS = 3.0  # Java: mqClientApiTimeout
FRAME_SECONDS = 30.0  # limit for receiving one frame; no request waits longer for its response
SILENCE_SECONDS = 2.0  # a peer counts as silent if it sends nothing for this time while a request waits


class RemotingClient(ConnectionPool):
    """Sends requests to any number of addresses ("host:port"), with the keys and TLS settings in the options.

    `invoke` raises RemotingConnectError, RemotingTimeoutError or RemotingClosedError; a response with an error code is
    returned like any other. `peer_requests` has the handlers for requests of peers.

    Silence. A timeout alone proves little: the broker may be slow with this one request. A peer counts as silent if a
    request waited `SILENCE_SECONDS` or more and no byte was received on the connection meanwhile. Then the connection
    is suspect, and the breaker opens: requests fail at once, except for one at a time, the probe, which uses a second
    connection (`to_probe` says why). The first byte on either connection ends the silence. A frame that
    does not end within `FRAME_SECONDS` is not silence, but equally useless: its length may be damaged, so that it
    swallows all responses. Such a connection is closed.

    GO_AWAY. A broker that shuts down gracefully responds with this code, which says that it did not process the
    request. No further request uses that connection, requests in flight get time for their responses, and the request
    is repeated on a new connection: behind a proxy that may be another broker.
    """

    def __init__(self, options: ClientOptions | None = None, clock: Clock | None = None) -> None:
        super().__init__(options or ClientOptions(), clock or SystemClock())
        self.silent: list[Callable[[str], None]] = []
        """Callbacks for the address of a peer that became silent: it sent nothing while a request waited."""

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
        connection = self.connected(address) or await self.connection(address)
        if connection.is_suspect:
            with self.breakers.probe(address):
                connection = await self.to_probe(address)
                reply = await self._invoke(connection, code, ext_fields, body, timeout_seconds)
        else:
            reply = await self._invoke(connection, code, ext_fields, body, timeout_seconds)
        if reply.code == ResponseCode.GO_AWAY:
            self.leave(connection, "the peer shuts down (GO_AWAY)")
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
                    ProtocolError(f"the frame is still incomplete after {duration(now - connection.frame_at)}")
                )
            elif (
                seconds >= SILENCE_SECONDS
                and connection.reads == reads
                and self.uses(connection)
                # a silent address counts as one failure, even if several requests expire
                and not self.breakers.failed_since(connection.address, started)
            ):
                self._note_silence(connection, seconds)
            raise

    def _note_silence(self, connection: RemotingConnection, seconds: float) -> None:
        """Record that a peer is silent: open its breaker, and call the callbacks in `silent`."""
        address = connection.address
        connection.is_suspect = connection.had_timeout = True
        self.breakers.failed(
            address, RemotingTimeoutError(address, f"it accepts requests but has been silent for {duration(seconds)}")
        )
        for callback in self.silent:
            callback(address)

    def call(
        self, connection: RemotingConnection, code: int, ext_fields: dict[str, str], timeout_seconds: float
    ) -> ResponseFuture:
        """Send a request on this connection without waiting. The future gives the response, whatever its code.

        It fails like the future of `RemotingConnection.call`. A failure is not reported if nothing awaits the future.
        """
        opaque = next(OPAQUE_NUMBERS)
        frame = encode_request(code, opaque, self.security.signed(ext_fields))
        return connection.call(code, opaque, frame, timeout_seconds)

    def secure(self, options: ClientOptions) -> None:
        """Use other keys and certificates from now on. If the TLS settings changed, every connection is replaced."""
        must_renew = self.security.change(options)
        self.connector.forget_failures()
        if must_renew:
            self.renew()
