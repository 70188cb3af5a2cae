"""A connection in memory: what is written at one end arrives at the other in order, late, in pieces, or not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.loop import Host
    from tests.simulation.network import Listener, Network

ROUTE_SECONDS: Final = 15.0
"""After which an end that sends to a host that cannot be reached gives the connection up, as TCP does after minutes."""
POLL_SECONDS: Final = 0.5


class _Loss(NamedTuple):
    """The end of a connection, as it arrives."""

    error: Exception | None


class Connection:
    """Two transports; `near` is that of the host that connected."""

    def __init__(
        self, network: Network, near: tuple[Host, asyncio.Protocol], listener: Listener, local: tuple[str, int]
    ) -> None:
        self.network = network
        self.near = Transport(self, near[0], near[1], local, listener.address)
        self.far = Transport(self, listener.host, None, listener.address, local)
        self.near.peer, self.far.peer = self.far, self.near
        self._factory = listener.factory
        self.tears = False
        """Whether it breaks in the middle of what is written next."""
        self.is_mute = False
        """Whether what is written on it goes nowhere, as where a router between the hosts has forgotten it."""

    def accept(self) -> None:
        """The listening host takes the connection."""
        if self.far.ended:
            return
        self.far.protocol = protocol = self._factory()
        protocol.connection_made(self.far)
        self.far.start_reading()

    def reset(self, host: Host) -> None:
        """The connection's end on this host is gone."""
        for end in (self.near, self.far):
            if end.host is host:
                end.ended = True
                end.peer.lose_later(ConnectionResetError(104, "Connection reset by peer"))

    def cut(self) -> None:
        """Break it: each end is told after a moment of its own, behind what is under way."""
        for end in (self.near, self.far):
            end.lose_later(ConnectionResetError(104, "Connection reset by peer"))


class Transport(asyncio.Transport):
    """One end of a connection. What is written arrives in order, at a time that the network draws."""

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
        self.ended = False  # this end reads and writes no more
        self._extra_names = {"sockname": local, "peername": remote}
        self._connection = connection
        self._network = connection.network
        self._context = host.context
        self._inbox: list[bytes] = []
        self._is_reading = protocol is not None
        self._last_arrival = 0.0
        self._blocked: list[bytes | _Loss] = []  # what arrived while nothing could
        self._blocked_at = 0.0

    def start_reading(self) -> None:
        """Hand on what came before the protocol was there."""
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
            at = 1 + int(chance.random() * (len(data) - 1))  # one draw, however long it is
            self._send(data[:at])
            self._send(data[at:])
        else:
            self._send(data)

    def _send(self, data: bytes) -> None:
        self.peer._schedule(data)

    def lose_later(self, error: Exception | None) -> None:
        """Have this end lose the connection, in order with what arrives."""
        self._schedule(_Loss(error))

    def _schedule(self, item: bytes | _Loss) -> None:
        loop = self._network.loop
        # by fractions of a microsecond: timers of one moment do not end in the order in which they were set
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
        """Hand on what could not arrive, or give the connection up."""
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
            for end in (self, self.peer):  # each host finds that out by itself
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
