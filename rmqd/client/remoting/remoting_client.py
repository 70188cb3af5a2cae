"""The client that sends requests to addresses. It opens a connection for each address on demand, and keeps it."""

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
    """The sender of requests to any number of addresses ("host:port"), with the keys and TLS settings in the options.

    `invoke` raises RemotingConnectError, RemotingTimeoutError or RemotingClosedError. A response with an error code is
    returned like any other response. `peer_requests` has the handlers for requests that peers send.

    Silence. A timeout alone proves little, because the broker may need long for this one request. A peer counts as
    silent if a request waited `SILENCE_SECONDS` or more, and no byte was received on the connection meanwhile. Then the
    connection is suspect, the breaker opens, and requests fail at once. One request at a time, the probe, is sent on a
    second connection (`probe_connection` gives the reason). The first byte on one of the two connections ends the
    silence. A connection is also closed if a frame does not end within `FRAME_SECONDS`, because the frame's length may
    be damaged, and the frame would swallow all responses.

    GO_AWAY. A broker that shuts down gracefully responds with this code, and does not process the request. `invoke`
    then repeats the request on a new connection, which behind a proxy may lead to another broker. The old connection
    gets no more requests, and stays open for a while for the responses to requests in flight.
    """

    def __init__(self, options: ClientOptions | None = None, clock: Clock | None = None) -> None:
        super().__init__(options or ClientOptions(), clock or SystemClock())
        self.silent: list[Callable[[str], None]] = []
        """Callbacks that are called with a peer's address when the peer becomes silent."""

    async def invoke(
        self,
        address: str,
        code: int,
        ext_fields: dict[str, str],
        body: bytes = b"",
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> RemotingCommand:
        """Send a request and return its response, whatever its code.

        `timeout_seconds` begins when the connection is open; opening it has a separate deadline. The class docstring
        describes silent peers, and the response GO_AWAY.
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
                connection = await self.probe_connection(address)
                reply = await self._invoke(connection, code, ext_fields, body, timeout_seconds)
        else:
            reply = await self._invoke(connection, code, ext_fields, body, timeout_seconds)
        if reply.code == ResponseCode.GO_AWAY:
            self.retire(connection, "the peer shuts down (GO_AWAY)")
        return reply

    async def _invoke(
        self, connection: RemotingConnection, code: int, ext_fields: dict[str, str], body: bytes, timeout_seconds: float
    ) -> RemotingCommand:
        started, reads = self.clock.monotonic(), connection.read_count
        try:
            return await connection.invoke(code, ext_fields, body, timeout_seconds)
        except (RemotingTimeoutError, asyncio.CancelledError):  # cancelled if a deadline of the caller ends first
            now = self.clock.monotonic()
            seconds = now - started
            if (
                connection.is_open
                and connection.frame_started_at is not None
                and now - connection.frame_started_at >= FRAME_SECONDS
            ):
                # The frame's length may be damaged. Then all following responses would be read as part of this frame.
                connection.corrupt(
                    ProtocolError(f"the frame is still incomplete after {duration(now - connection.frame_started_at)}")
                )
            elif (
                seconds >= SILENCE_SECONDS
                and connection.read_count == reads
                and self.is_in_use(connection)
                # if several requests expire in the same silence, only the first is a failure of the address
                and not self.breakers.failed_since(connection.address, started)
            ):
                self._note_silence(connection, seconds)
            raise

    def _note_silence(self, connection: RemotingConnection, seconds: float) -> None:
        """Record that a peer is silent: mark its connection, open its breaker, and call the callbacks in `silent`."""
        address = connection.address
        connection.is_suspect = connection.had_timeout = True
        self.breakers.record_failure(
            address, RemotingTimeoutError(address, f"the peer accepts requests but was silent for {duration(seconds)}")
        )
        for callback in self.silent:
            callback(address)

    def call(
        self, connection: RemotingConnection, code: int, ext_fields: dict[str, str], timeout_seconds: float
    ) -> ResponseFuture:
        """Send a request on this connection, and return the future of its response, whatever the response's code.

        The future fails like the future of `RemotingConnection.call`. A failure that nothing awaits is not logged.
        """
        opaque = next(OPAQUE_NUMBERS)
        frame = encode_request(code, opaque, self.security.signed(ext_fields))
        return connection.call(code, opaque, frame, timeout_seconds)

    def secure(self, options: ClientOptions) -> None:
        """Use the keys and certificates of `options` from now on. If TLS settings changed, replace every connection."""
        must_renew = self.security.change(options)
        self.connector.forget_failures()
        if must_renew:
            self.renew()
