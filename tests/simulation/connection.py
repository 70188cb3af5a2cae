"""A connection in memory: data arrives in order, late, in pieces, or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.loop import Host
    from tests.simulation.network import Listener, Network

ROUTE_SECONDS: Final = 15.0
"""When a connection to an unreachable host fails. Real TCP fails after minutes."""
POLL_SECONDS: Final = 0.5


class _Loss(NamedTuple):
    """The end of a connection, as it arrives."""

    error: Exception | None


class Connection:
    """Two transports; `near` belongs to the host that connected."""

    def __init__(
        self, network: Network, near: tuple[Host, asyncio.Protocol], listener: Listener, local: tuple[str, int]
    ) -> None:
        self.network = network
        self.near = Transport(self, near[0], near[1], local, listener.address)
        self.far = Transport(self, listener.host, None, listener.address, local)
        self.near.peer, self.far.peer = self.far, self.near
        self._factory = listener.factory
        self.tears = False
        """Whether the connection breaks in the middle of the next write."""
        self.is_mute = False
        """Whether written data is lost silently, as when a router between the hosts has forgotten the connection."""

    def accept(self) -> None:
        """Accept the connection on the listening host."""
        if self.far.ended:
            return
        self.far.protocol = protocol = self._factory()
        protocol.connection_made(self.far)
        self.far.start_reading()

    def reset(self, host: Host) -> None:
        """End this host's side of the connection; the peer receives a reset."""
        for end in (self.near, self.far):
            if end.host is host:
                end.ended = True
                end.peer.lose_later(ConnectionResetError(104, "Connection reset by peer"))

    def cut(self) -> None:
        """Break the connection. Each end notices after its own delay, behind the data in transit."""
        for end in (self.near, self.far):
            end.lose_later(ConnectionResetError(104, "Connection reset by peer"))


class Transport(asyncio.Transport):
    """One end of a connection. Data arrives in order, at a time drawn by the network."""

    peer: Transport

    def __init__(
        self,
        connection: Connection,
        host: Host,
        protocol: asyncio.Protocol | None,
        local: tuple[str, int],
        remote: tuple[str, int],
    ) -> None:
        super().__init__()
        self.host = host
        self.protocol = protocol
        self.ended = False  # this end no longer reads or writes
        self._extra_names = {"sockname": local, "peername": remote}
        self._connection = connection
        self._network = connection.network
        self._context = host.context
        self._inbox: list[bytes] = []
        self._is_reading = protocol is not None
        self._last_arrival = 0.0
        self._blocked: list[bytes | _Loss] = []  # data that is blocked by a partition
        self._blocked_at = 0.0

    def start_reading(self) -> None:
        """Deliver the data that arrived before the protocol existed."""
        self._is_reading = True
        inbox, self._inbox = self._inbox, []
        for data in inbox:
            self._arrived(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.ended or self.peer.ended or self._connection.is_mute:
            return
        network, chance = self._network, self._network.chance
        data = bytes(data)
        if network.noise and (noise := network.noise_between(self.host, self.peer.host)) is not None:
            data = noise.treat(data, chance, is_answer=self is self._connection.far)
            if not data:
                return
        if self._connection.tears:
            self._send(data[: 1 + len(data) // 2])
            self._connection.cut()
            return
        if network.pieces and len(data) > 1 and chance.random() < network.pieces:
            at = 1 + int(chance.random() * (len(data) - 1))  # one draw, whatever the length
            self._send(data[:at])
            self._send(data[at:])
        else:
            self._send(data)

    def _send(self, data: bytes) -> None:
        self.peer._schedule(data)

    def lose_later(self, error: Exception | None) -> None:
        """End the connection here, in order with arriving data."""
        self._schedule(_Loss(error))

    def _schedule(self, item: bytes | _Loss) -> None:
        loop = self._network.loop
        # Fractions of a microsecond apart: timers of the same moment do not fire in the order in which they were set.
        at = self._last_arrival = max(loop.now + self._network.seconds(), self._last_arrival + 1e-7)
        loop.call_at(at, self._arrive, item, context=self._context)

    def _arrive(self, item: bytes | _Loss) -> None:
        if self.ended:
            return
        if self._blocked or self._network.are_apart(self.host, self.peer.host):
            self._blocked.append(item)
            if len(self._blocked) == 1:
                self._blocked_at = self._network.loop.now
                self._network.loop.call_later(POLL_SECONDS, self._look, context=self._context)
        else:
            self._take(item)

    def _look(self) -> None:
        """Deliver the blocked data, or fail the connection."""
        loop = self._network.loop
        if self.ended:
            return
        if not self._network.are_apart(self.host, self.peer.host):
            blocked, self._blocked = self._blocked, []
            for item in blocked:
                if not self.ended:
                    self._take(item)
        elif loop.now - self._blocked_at > ROUTE_SECONDS:
            self._blocked.clear()
            for end in (self, self.peer):  # each host notices separately
                loop.call_soon(end._lose, TimeoutError(110, "Connection timed out"), context=end._context)
        else:
            loop.call_later(POLL_SECONDS, self._look, context=self._context)

    def _take(self, item: bytes | _Loss) -> None:
        if isinstance(item, _Loss):
            self._lose(item.error)
        else:
            self._arrived(item)

    def _arrived(self, data: bytes) -> None:
        if self._is_reading and self.protocol is not None:
            self.protocol.data_received(data)
        else:
            self._inbox.append(data)

    def _lose(self, error: Exception | None) -> None:
        if self.ended:
            return
        self.ended = True
        self._forget()
        if self.protocol is not None:
            self.protocol.connection_lost(error)

    def close(self) -> None:
        if self.ended:
            return
        self.ended = True
        self.peer.lose_later(None)
        self._forget()
        self._network.loop.call_soon(self._closed, context=self._context)

    def abort(self) -> None:
        self.close()

    def _closed(self) -> None:
        if self.protocol is not None:
            self.protocol.connection_lost(None)

    def _forget(self) -> None:
        if self.peer.ended and self._connection in self._network.connections:
            self._network.connections.remove(self._connection)

    def is_closing(self) -> bool:
        return self.ended

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self.start_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra_names.get(name, default)
