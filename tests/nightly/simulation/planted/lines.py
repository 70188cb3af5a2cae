"""Bugs in connections, responses and heartbeats."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rmqd.client.heartbeat import Heartbeat
from rmqd.client.remoting.connection import RemotingConnection
from rmqd.client.remoting.connection_pool import ConnectionPool
from rmqd.client.remoting.connector import Breakers
from rmqd.client.remoting.pending import PendingRequests
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.wire.command import FrameDecoder, RemotingCommand
from tests.nightly.simulation.planted.registry import breaks, plant, tries


@plant
def answers_mixed_up(patch: pytest.MonkeyPatch) -> None:
    """The response to one request is sometimes given to another request with the same code."""
    right, chance = PendingRequests.resolve, random.Random(1)

    def resolve(self: PendingRequests, command: RemotingCommand) -> None:
        here = self._pending.get(command.opaque)
        others = [] if here is None else [other for other in self._pending.values() if other.code == here.code]
        if here is not None and len(others) > 1 and chance.random() < 0.1:
            other = chance.choice(others)
            here.future, other.future = other.future, here.future
        right(self, command)

    patch.setattr(PendingRequests, "resolve", resolve)


@plant
def requests_of_a_lost_connection_wait_on(patch: pytest.MonkeyPatch) -> None:
    """Requests on a closed connection wait for their deadlines."""
    patch.setattr(PendingRequests, "fail", lambda self, make_error: None)


@plant(needs=tries("lose"))
def deadlines_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A request that is never answered waits until its connection ends."""
    patch.setattr(PendingRequests, "_arm", lambda self, at: None)


@plant(needs=lambda plan: plan.pieces > 0)
def half_a_frame_forgotten(patch: pytest.MonkeyPatch) -> None:
    """If a frame arrives in two pieces, the first piece is dropped."""
    right = FrameDecoder.feed

    def feed(self: FrameDecoder, data: bytes) -> list[bytes]:
        payloads = right(self, data)
        self._chunks.clear()
        self.held_bytes, self._wanted = 0, 4
        return payloads

    patch.setattr(FrameDecoder, "feed", feed)


@plant(needs=breaks("half", "freeze", "seclude", "partition", "noise"))
def breaker_never_closes(patch: pytest.MonkeyPatch) -> None:
    """After one failure, an address is not used again by requests that may wait long."""
    patch.setattr(Breakers, "answered", lambda self, address: None)


@plant(needs=tries("part"))
def line_that_speaks_again_not_used(patch: pytest.MonkeyPatch) -> None:
    """If a connection recovers while a second one cannot be made, it stays unused: the breaker never closes."""

    async def to_probe(self: ConnectionPool, address: str) -> RemotingConnection:
        current = await self.connection(address)
        if not current.is_suspect or not current.had_timeout:
            return current
        if (former := self._successors.get(address)) is not None:
            if not former.had_timeout:
                return former
            del self._successors[address]
            former.close("the peer accepts requests but is silent")
        successor = await self.connector.connect(address)
        if self._closed or self._connections.get(address) is not current or not current.is_suspect:
            successor.close("this connection is not needed")
            return await self.connection(address)
        successor.is_suspect = True
        self._successors[address] = successor
        return successor

    patch.setattr(ConnectionPool, "probe_connection", to_probe)


@plant(needs=tries("mute"))
def silent_line_never_replaced(patch: pytest.MonkeyPatch) -> None:
    """A connection that stays open and silent is used for ever."""
    patch.setattr(ConnectionPool, "probe_connection", ConnectionPool.connection)


@plant(needs=tries("mute"))
def silence_not_noticed(patch: pytest.MonkeyPatch) -> None:
    """Unanswered pulls count as held by their broker."""
    patch.setattr(RemotingConnection, "silent_seconds", property(lambda self: 0.0))
    patch.setattr(RemotingClient, "_note_silence", lambda self, connection, seconds: None)


@plant(needs=tries("crash"))
def heartbeat_forgotten_after_a_reconnect(patch: pytest.MonkeyPatch) -> None:
    """A new connection gets no heartbeat until the next one is due: its broker does not know the member yet."""
    right = Heartbeat.is_known_on

    def is_known_on(self: Heartbeat, connection: RemotingConnection) -> bool:
        broker = self._brokers.get(connection.address)
        return (broker is not None and broker.answered_on is not None) or right(self, connection)

    patch.setattr(Heartbeat, "is_known_on", is_known_on)
    patch.setattr(Heartbeat, "_opened", lambda self, address: None)
    patch.setattr(Heartbeat, "send_heartbeats_soon", lambda self, address=None: None)


@plant(needs=tries("crash"))
def failed_heartbeat_not_repeated(patch: pytest.MonkeyPatch) -> None:
    """After a failed heartbeat, the next one is sent only when it is due."""

    def failed(self: Heartbeat, address: str, error: Any) -> None:
        self._broker(address).up = False

    patch.setattr(Heartbeat, "_failed", failed)


@plant
def connection_not_made_again(patch: pytest.MonkeyPatch) -> None:
    """After one failed connection attempt, an address is never connected to again."""
    right = ConnectionPool._open

    async def open_it(self: ConnectionPool, address: str) -> RemotingConnection:
        broken = self.__dict__.setdefault("broken", {})
        if address in broken:
            raise broken[address]
        try:
            return await right(self, address)
        except Exception as error:
            broken[address] = error
            raise

    patch.setattr(ConnectionPool, "_open", open_it)


@plant
def one_connection_for_each_caller(patch: pytest.MonkeyPatch) -> None:
    """Simultaneous callers each make a connection, and the last one replaces the others."""

    async def connection(self: ConnectionPool, address: str) -> RemotingConnection:
        if (known := self._connections.get(address)) is not None:
            return known
        self.breakers.raise_during_pause(address)
        return await self._open(address)

    patch.setattr(ConnectionPool, "connection", connection)
