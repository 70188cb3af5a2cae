"""The network between hosts: which hosts can connect, and the delays and losses of the data that they send."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.simulation.connection import Connection, Transport
from tests.simulation.loop import Host, SimulatedLoop

NEVER_SECONDS: Final = 1e6


class Network:
    """All hosts' addresses, and the connections between them."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random) -> None:
        self.loop = loop
        self.chance = chance
        self.least_seconds, self.most_seconds = 0.0002, 0.003
        self.slow = 0.0
        """The share of deliveries that take up to `slow_seconds`."""
        self.slow_seconds = 1.0
        self.pieces = 0.0
        """The share of deliveries that arrive in two pieces, with time between them."""
        self.apart: set[frozenset[str]] = set()
        """Pairs of hosts, by name, that cannot reach each other."""
        self.deaf: set[tuple[str, str]] = set()
        """Pairs of hosts, by name, of which the first one receives nothing from the second."""
        self.unreachable: set[str] = set()
        """Hosts that are unreachable, by name."""
        self.no_route_seconds = NEVER_SECONDS
        """How long a connection attempt to an unreachable host takes to fail."""
        self.noise: dict[str, Noise] = {}
        """The noise on frames from and to a host, by its name without the number of its start."""
        self.connections: list[Connection] = []
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ports = itertools.count(20_000)
        loop.network = self

    def seconds(self) -> float:
        """Return how long the next delivery takes."""
        if self.slow and self.chance.random() < self.slow:
            return self.chance.uniform(self.least_seconds, self.slow_seconds)
        return self.chance.uniform(self.least_seconds, self.most_seconds)

    def are_apart(self, receiver: Host, sender: Host) -> bool:
        """Whether a host cannot receive data from another one."""
        if not (self.apart or self.deaf or self.unreachable):
            return False
        return (
            frozenset((receiver.name, sender.name)) in self.apart
            or (receiver.name, sender.name) in self.deaf
            or not self.unreachable.isdisjoint((receiver.name, sender.name))
        )

    def noise_between(self, one: Host, other: Host) -> Noise | None:
        """Return the noise on frames between two hosts."""
        for host in (one, other):
            noise = self.noise.get(host.name.partition("/")[0])
            if noise is not None:
                return noise
        return None

    def listen(self, host: Host | None, factory: Callable[[], asyncio.Protocol], name: str, port: int) -> Listener:
        """Accept connections at an address."""
        assert host is not None
        port = port or next(self._ports)
        if (name, port) in self._listeners:
            raise OSError(98, "Address already in use")
        listener = self._listeners[name, port] = Listener(self, host, factory, (name, port))
        return listener

    def forget(self, address: tuple[str, int]) -> None:
        """Stop accepting connections at an address."""
        self._listeners.pop(address, None)

    async def connect(
        self, host: Host | None, factory: Callable[[], asyncio.Protocol], name: str, port: int
    ) -> tuple[Transport, asyncio.Protocol]:
        """Connect, like loop.create_connection. Raises OSError; if the host is unreachable, only after a long time."""
        assert host is not None
        await asyncio.sleep(self.seconds() * 2)
        listener = self._listeners.get((name, port))
        if listener is None:
            raise ConnectionRefusedError(111, "Connection refused")
        if self.are_apart(host, listener.host) or self.are_apart(listener.host, host):
            await asyncio.sleep(self.no_route_seconds)
            raise OSError(113, "No route to host")
        protocol = factory()
        connection = Connection(self, (host, protocol), listener, (f"10.0.0.{len(self.loop.hosts)}", next(self._ports)))
        self.connections.append(connection)
        protocol.connection_made(connection.near)
        listener.host.context.run(self.loop.call_soon, connection.accept)
        return connection.near, protocol

    def end(self, host: Host) -> None:
        """Reset the connections of a killed process, after the data that it had sent, as its kernel does."""
        for address, listener in list(self._listeners.items()):
            if listener.host is host:
                del self._listeners[address]
        for connection in list(self.connections):
            connection.reset(host)


class Noise(NamedTuple):
    """The shares of frames that are lost, and of responses that are duplicated."""

    lost: float
    doubled: float

    def treat(self, data: bytes, chance: random.Random, *, is_answer: bool) -> bytes:
        """Return the frames that arrive."""
        kept, at = [], 0
        while at < len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            draw = chance.random()
            if draw >= self.lost:
                is_doubled = is_answer and draw < self.lost + self.doubled
                kept.append(data[at:end] * (1 + is_doubled))
            at = end
        return b"".join(kept)


class Listener(asyncio.AbstractServer):
    """A host that accepts connections at an address."""

    def __init__(
        self, network: Network, host: Host, factory: Callable[[], asyncio.Protocol], address: tuple[str, int]
    ) -> None:
        self.host = host
        self.factory = factory
        self.address = address
        self._network = network

    @property
    def sockets(self) -> list[Listener]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def close(self) -> None:
        self._network.forget(self.address)

    async def wait_closed(self) -> None:
        """Return at once: connections are not waited for."""

    def get_loop(self) -> SimulatedLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return True

    async def start_serving(self) -> None:
        """Do nothing: it serves from the beginning."""

    async def serve_forever(self) -> None:
        raise NotImplementedError
