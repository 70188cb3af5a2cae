"""All hosts' addresses: who can connect to whom, and how long what they send takes, or what becomes of it."""

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
        """How many deliveries in one take up to `slow_seconds`."""
        self.slow_seconds = 1.0
        self.pieces = 0.0
        """How many deliveries in one come in two pieces, with time between them."""
        self.apart: set[frozenset[str]] = set()
        """Pairs of hosts, by name, between which nothing arrives."""
        self.deaf: set[tuple[str, str]] = set()
        """Pairs of hosts, by name, of which the first one gets nothing from the second."""
        self.unreachable: set[str] = set()
        """Hosts that nobody reaches, by name."""
        self.no_route_seconds = NEVER_SECONDS
        """How long it takes until a host hears that it cannot connect to one that it does not reach."""
        self.noise: dict[str, Noise] = {}
        """What happens to frames from and to a host, by its name without its life's number."""
        self.connections: list[Connection] = []
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._ports = itertools.count(20_000)
        loop.network = self

    def seconds(self) -> float:
        """How long the next delivery takes."""
        if self.slow and self.chance.random() < self.slow:
            return self.chance.uniform(self.least_seconds, self.slow_seconds)
        return self.chance.uniform(self.least_seconds, self.most_seconds)

    def are_apart(self, receiver: Host, sender: Host) -> bool:
        """Whether nothing arrives at a host from another one."""
        if not (self.apart or self.deaf or self.unreachable):
            return False
        return (
            frozenset((receiver.name, sender.name)) in self.apart
            or (receiver.name, sender.name) in self.deaf
            or not self.unreachable.isdisjoint((receiver.name, sender.name))
        )

    def noise_between(self, one: Host, other: Host) -> Noise | None:
        """What happens to frames between two hosts."""
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
        """Accept no more connections there."""
        self._listeners.pop(address, None)

    async def connect(
        self, host: Host | None, factory: Callable[[], asyncio.Protocol], name: str, port: int
    ) -> tuple[Transport, asyncio.Protocol]:
        """Connect, as loop.create_connection. Raises OSError, or waits nearly for ever if nothing arrives."""
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
        """A host's process was killed: its kernel resets the connections, after what it had sent."""
        for address, listener in list(self._listeners.items()):
            if listener.host is host:
                del self._listeners[address]
        for connection in list(self.connections):
            connection.reset(host)


class Noise(NamedTuple):
    """How many frames in one are lost, and how many answers in one come twice."""

    lost: float
    doubled: float

    def treat(self, data: bytes, chance: random.Random, *, is_answer: bool) -> bytes:
        """What arrives of whole frames."""
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
