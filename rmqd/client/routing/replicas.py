"""Which of a broker's addresses to ask: the route says who there is, the breakers who answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.client.routing.route_table import RouteTable

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 8.0  # in which every client of ours has heartbeated to a broker that is back


class Replicas:
    """Chooses replicas, and lets go of those that have moved.

    Where a broker is at another address than before, the connection to the old one is closed: it may be to a machine
    that is cut off, and what waits there for an answer is to be asked at the new one.
    """

    def __init__(self, remoting: RemotingClient, routes: RouteTable) -> None:
        self._remoting = remoting
        self._routes = routes
        self._known: dict[str, dict[int, str]] = {}  # by the broker's name: where each replica was last
        routes.on_change(self._routes_changed)

    def to_read(self, broker_name: str, broker_id: int = 0) -> str | None:
        """The address that messages are pulled from: this replica's, or another one's while it is not there or down."""
        address = self._routes.address(broker_name, broker_id)
        if address is None or not self._remoting.is_down(address):
            return address
        others = self._routes.replicas(broker_name).values()
        return next((other for other in others if not self._remoting.is_down(other)), address)

    def is_reachable(self, broker_name: str) -> bool:
        """Whether one of the broker's addresses is connected, and not known to be down."""
        addresses = self._routes.replicas(broker_name).values()
        return any(self._remoting.connected(at) is not None and not self._remoting.is_down(at) for at in addresses)

    def steady_first(self, addresses: Iterable[str]) -> list[str]:
        """The same addresses; last those that are down, before them those that are connected for a moment only."""
        return sorted(addresses, key=lambda address: (self._remoting.is_down(address), self.is_new(address)))

    def is_new(self, address: str) -> bool:
        """Whether there is no connection, or one so young that not all clients may have made theirs."""
        connection = self._remoting.connected(address)
        return connection is None or asyncio.get_running_loop().time() - connection.made_at < SETTLE_SECONDS

    def _routes_changed(self, _: frozenset[str]) -> None:
        in_use = self._routes.broker_addresses()
        for name, replicas in self._routes.brokers().items():
            before = self._known.get(name, {})
            # a replica that is not there may only not have registered yet with a name server that was restarted
            self._known[name] = {**before, **replicas}
            for broker_id, gone in before.items():
                if gone not in in_use and replicas.get(broker_id, gone) != gone:
                    log.info("broker.moved", broker=name, gone=gone, addresses=sorted(replicas.values()))
                    self._remoting.give_up(gone, f"broker {name} is no longer there")
