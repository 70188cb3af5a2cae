"""The pool of connections, one for each address: opened on demand, replaced when lost, silent or about to close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

import structlog

from rmqd.client.client_options import ClientOptions
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.client.remoting.connector import RENEWED, Breakers, Connector
from rmqd.client.remoting.peer_requests import PeerRequests
from rmqd.client.remoting.pending import TrafficCounters
from rmqd.client.remoting.security import Security
from rmqd.errors import ConnectionRenewedError, RemotingClosedError, RemotingConnectError, RemotingError, TlsError
from rmqd.runtime.clock import Clock

log = structlog.get_logger(__name__)

MAX_CLOSE_SECONDS: Final = 1.0  # how long to wait for the peers' TLS close_notify
MAX_FINISH_SECONDS: Final = 3.0  # how long to wait for responses on a connection that is being replaced
MAX_SILENT_FINISH_SECONDS: Final = 1.0  # how long to wait for responses on a replaced connection that was silent
EARLY_CLOSE_SECONDS: Final = 1.0  # if the peer closes a connection this soon after opening, it counts as a break

_Work = Coroutine[None, None, None]


class ConnectionPool:
    """The connections of a client: one for each address. A connection is kept until it ends.

    `opened` callbacks are called with the address when a connection is opened. `lost` callbacks are called with the
    address and the reason when the current connection has ended.
    """

    def __init__(self, options: ClientOptions, clock: Clock) -> None:
        self.clock = clock
        self.traffic = TrafficCounters()
        self.security = Security(options, clock)
        self.breakers = Breakers(clock)
        self.peer_requests = PeerRequests()
        self.on_opened: list[Callable[[str], None]] = []
        self.lost: list[Callable[[str, str], None]] = []
        self._max_frame_size = options.max_frame_size_bytes
        self.connector = Connector(self.security, self.breakers, self._new_connection, clock)
        self._connections: dict[str, RemotingConnection] = {}
        self._successors: dict[str, RemotingConnection] = {}
        self._opening: dict[str, asyncio.Task[RemotingConnection]] = {}
        self._explaining: dict[str, asyncio.Task[None]] = {}
        self._kept: set[asyncio.Task[None]] = set()
        self._closed = False

    def is_down(self, address: str) -> bool:
        """Return whether the address could not be connected or was silent, and has not responded since."""
        return self.breakers.is_open(address)

    def connected(self, address: str) -> RemotingConnection | None:
        return self._connections.get(address)

    def usable_connection(self, address: str) -> RemotingConnection | None:
        """Return the open connection to an address; None without a connection, or if the address is down."""
        return None if self.breakers.is_open(address) else self._connections.get(address)

    async def connection(self, address: str) -> RemotingConnection:
        """Return the open connection to an address, or open one. Simultaneous callers share the attempt."""
        if (connection := self._connections.get(address)) is not None:
            return connection
        if self._closed:
            raise RemotingConnectError(address, "the client is closed")
        if (explaining := self._explaining.get(address)) is not None:
            await asyncio.wait([explaining])
        if (opening := self._opening.get(address)) is None:
            self.breakers.raise_during_pause(address)
            opening = asyncio.create_task(self._open(address), name=f"connect:{address}")
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opening_ended(address, task))
        # one caller's cancellation must not end the attempt for the others
        return await asyncio.shield(opening)

    async def probe_connection(self, address: str) -> RemotingConnection:
        """Return the connection for a probe: the one request that finds out whether a silent peer responds again.

        The client cannot distinguish a silent peer from a dead connection. A paused broker process answers earlier
        requests when it continues. But a proxy, load balancer or NAT that lost its state never answers on the old
        connection, although TCP may acknowledge every byte, and a new connection would work at once. So the probe uses
        a second connection, and requests on the first connection keep waiting. The connection that receives bytes first
        then serves the address. If both stay silent, the second connection is closed at the next probe, because it may
        be dead too. The breaker's pauses limit this to one new connection every few seconds.
        """
        current = await self.connection(address)
        if not current.is_suspect or not current.had_timeout:
            return current
        if (former := self._successors.get(address)) is not None:
            if not former.had_timeout:
                return former
            del self._successors[address]
            former.close("the peer accepts requests but is silent")
        try:
            successor = await self.connector.connect(address)
        except RemotingError:
            if self._connections.get(address) is not current or current.is_suspect:
                raise
            # After a short network failure, the first connection has received bytes, and a second one was not opened.
            # The bytes closed the breaker, and then the failed attempt opened it again. So close it here: later bytes
            # of the first connection do not, unless they follow a silence.
            self.breakers.answered(address)
            return current
        if self._closed or self._connections.get(address) is not current or not current.is_suspect:
            successor.close("this connection is not needed")  # the first connection ended, or received bytes, meanwhile
            await successor.wait_closed(MAX_CLOSE_SECONDS)
            return await self.connection(address)
        successor.is_suspect = True
        self._successors[address] = successor
        return successor

    def on_received(self, connection: RemotingConnection) -> None:
        """Called when a connection receives its first bytes, or its first bytes after a silence."""
        address = connection.address
        self.breakers.answered(address)
        successor = self._successors.get(address)
        if successor is None or not self.is_in_use(connection):
            return
        del self._successors[address]
        if connection is not successor:
            self._keep(self._end_silent(successor, "the previous connection works again"), f"leave:{address}")
            return
        silent, self._connections[address] = self._connections.get(address), successor
        self._call_opened(address)
        if silent is not None:
            reason = "the peer is silent on this connection, and answers on a new one"
            log.info("connection.left", address=address, reason=reason)
            self._keep(self._end_silent(silent, reason), f"leave:{address}")

    def is_in_use(self, connection: RemotingConnection) -> bool:
        """Return whether requests are sent on this connection."""
        address = connection.address
        return connection in (self._connections.get(address), self._successors.get(address))

    def disconnect(self, address: str, reason: str) -> None:
        """Close the connections to an address: the current connection, and the second connection of a probe."""
        for connections in (self._successors, self._connections):
            if (connection := connections.get(address)) is not None:
                connection.close(reason)

    def retire(self, connection: RemotingConnection, reason: str) -> None:
        """Send no more requests on this connection. It is closed after MAX_FINISH_SECONDS or the last response."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            log.info("connection.left", address=connection.address, reason=reason)
            self._keep(self._end(connection, reason), f"leave:{connection.address}")

    def drop_address(self, address: str, reason: str) -> None:
        """Stop using an address. Requests in flight fail with ConnectionRenewedError, so that callers retry."""
        self.breakers.answered(address)
        for connections in (self._successors, self._connections):
            if (connection := connections.pop(address, None)) is not None:
                connection.pending.fail(lambda: ConnectionRenewedError(address, reason))
                connection.close(reason)

    def renew(self) -> None:
        """Start to replace every connection by a new connection, because the TLS settings changed."""
        for connection in list(self._successors.values()):
            connection.close(RENEWED)
        for connection in list(self._connections.values()):
            self._keep(self._renew(connection), f"renew:{connection.address}")

    async def close(self) -> None:
        """Close every connection, and cancel and await the tasks of the pool."""
        self._closed = True
        await self.peer_requests.close()
        tasks = [*self._opening.values(), *self._explaining.values(), *self._kept]
        for task in tasks:
            task.cancel()
        connections = [*self._connections.values(), *self._successors.values()]
        for connection in connections:
            connection.close("the client was closed")
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(connection.wait_closed(MAX_CLOSE_SECONDS) for connection in connections))

    def on_connection_ended(self, connection: RemotingConnection) -> None:
        """Called when the peer or this client has closed a connection."""
        address = connection.address
        is_current = self._connections.get(address) is connection
        if is_current:
            del self._connections[address]
        is_successor = self._successors.get(address) is connection
        if is_successor:
            del self._successors[address]
        is_used = (is_current or is_successor) and not self._closed
        if is_used and is_current and not connection.has_received_bytes and not connection.was_closed_here:
            task = asyncio.create_task(self._explain(connection), name=f"why was {address} closed")
            self._explaining[address] = task
            task.add_done_callback(lambda _: self._explaining.pop(address, None))
        else:
            connection.pending.fail(lambda: RemotingClosedError(address, connection.close_reason))
        if is_used:  # False if the connection was replaced before, or its address is not used any more
            self._judge(connection, is_successor=is_successor)
            for callback in self.lost:
                callback(address, connection.close_reason)

    def _judge(self, connection: RemotingConnection, *, is_successor: bool) -> None:
        """Record a break or failure of the address, if the end of its connection counts as a break or failure."""
        address, reason = connection.address, connection.close_reason
        seconds = self.clock.monotonic() - connection.made_at
        by_peer = not connection.was_closed_here
        if connection.corruption is not None or (
            by_peer and connection.has_received_bytes and seconds < EARLY_CLOSE_SECONDS
        ):
            self.breakers.record_break(
                address, RemotingClosedError(address, reason)
            )  # even if the address sometimes responds
        elif is_successor and by_peer and not connection.has_received_bytes:
            self.breakers.record_failure(address, RemotingClosedError(address, reason))

    def _new_connection(self, address: str) -> RemotingConnection:
        return RemotingConnection(
            address,
            max_frame_size_bytes=self._max_frame_size,
            traffic=self.traffic,
            on_request=self.peer_requests.on_request,
            on_lost=self.on_connection_ended,
            on_answer=self.on_received,
            clock=self.clock,
            refusals=self.security.refusals,
        )

    async def _open(self, address: str) -> RemotingConnection:
        connection = await self.connector.connect(address)
        connection.is_suspect = self.breakers.is_silent(address)
        self._connections[address] = connection
        self._call_opened(address)
        return connection

    def _opening_ended(self, address: str, task: asyncio.Task[RemotingConnection]) -> None:
        self._opening.pop(address, None)
        if not task.cancelled():
            task.exception()  # marks the exception as retrieved, because all callers may have been cancelled

    def _call_opened(self, address: str) -> None:
        for callback in self.on_opened:
            callback(address)

    async def _explain(self, connection: RemotingConnection) -> None:
        """Find out why the peer closed a connection, and fail its requests in flight with this reason."""
        address, error = connection.address, None
        try:
            error = await self.connector.closing_reason(connection)
        finally:
            if error is None:
                connection.pending.fail(lambda: RemotingClosedError(address, connection.close_reason))
            else:
                reason = error.reason
                connection.pending.fail(lambda: TlsError(address, reason))

    async def _renew(self, old: RemotingConnection) -> None:
        """Replace a connection. Open the new connection first, so that the broker does not remove this client."""
        address = old.address
        try:
            successor = await self.connector.connect(address)
        except RemotingConnectError as error:
            log.debug("connection.not_renewed", address=address, error=str(error))
            if self._connections.get(address) is old:
                del self._connections[address]
        else:
            if self._connections.get(address) is not old:  # the connection was lost meanwhile, and perhaps replaced
                successor.close(RENEWED)
                return
            self._connections[address] = successor
            self._call_opened(address)
        await self._end(old, RENEWED)

    async def _end(self, connection: RemotingConnection, reason: str) -> None:
        try:
            await connection.pending.wait_for_responses(MAX_FINISH_SECONDS)
        finally:
            await self._end_now(connection, reason)

    async def _end_silent(self, connection: RemotingConnection, reason: str) -> None:
        # a broker process that continues after a pause answers on both connections at about the same time
        try:
            await self.clock.sleep(MAX_SILENT_FINISH_SECONDS)
        finally:
            await self._end_now(connection, reason)

    async def _end_now(self, connection: RemotingConnection, reason: str) -> None:
        """Close a connection that the pool does not use any more. Also runs if the caller's task was cancelled."""
        connection.pending.fail(lambda: ConnectionRenewedError(connection.address, reason))
        connection.close(reason)
        await connection.wait_closed(MAX_CLOSE_SECONDS)

    def _keep(self, work: _Work, name: str) -> None:
        """Start a background task, which `close` cancels."""
        task = asyncio.create_task(work, name=name)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)
