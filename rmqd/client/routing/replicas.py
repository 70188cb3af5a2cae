"""The address of a broker to ask: routes list the replicas, and breakers know which ones answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from rmqd.client.remoting.client import RemotingClient
    from rmqd.client.routing.route_table import RouteTable

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 8.0  # after this time, every rmqd client has sent a heartbeat to a broker that returned


class Replicas:
    """Selects replicas, and stops using addresses of moved replicas.

    If a broker's replica gets a new address, the connection to the old one is closed. The old machine may be
    unreachable, and requests that wait for its responses can be sent to the new address at once.
    """

    def __init__(self, remoting: RemotingClient, routes: RouteTable) -> None:
        self._remoting = remoting
        self._routes = routes
        self._known: dict[str, dict[int, str]] = {}  # the last address of each replica, by broker name
        routes.on_change(self._routes_changed)

    def to_read(self, broker_name: str, broker_id: int = 0) -> str | None:
        """Return the address to pull from: this replica's, or another replica's if it is missing or down."""
        address = self._routes.address(broker_name, broker_id)
        if address is None or not self._remoting.is_down(address):
            return address
        others = self._routes.replicas(broker_name).values()
        return next((other for other in others if not self._remoting.is_down(other)), address)

    def is_reachable(self, broker_name: str) -> bool:
        """Return whether one of the broker's addresses is connected and not down."""
        addresses = self._routes.replicas(broker_name).values()
        return any(self._remoting.connected(at) is not None and not self._remoting.is_down(at) for at in addresses)

    def steady_first(self, addresses: Iterable[str]) -> list[str]:
        """Return the addresses by preference: with an older connection, without one, and down."""
        return sorted(addresses, key=lambda address: (self._remoting.is_down(address), self.is_new(address)))

    def is_new(self, address: str) -> bool:
        """Return whether there is no connection, or one so new that other clients may not have connected yet."""
        connection = self._remoting.connected(address)
        return connection is None or self._remoting.clock.monotonic() - connection.made_at < SETTLE_SECONDS

    def _routes_changed(self, _: frozenset[str]) -> None:
        in_use = self._routes.broker_addresses()
        for name, replicas in self._routes.brokers().items():
            before = self._known.get(name, {})
            # keep the address of a missing replica: it may register again with a restarted name server
            self._known[name] = {**before, **replicas}
            for broker_id, gone in before.items():
                if gone not in in_use and replicas.get(broker_id, gone) != gone:
                    log.info("broker.moved", broker=name, gone=gone, addresses=sorted(replicas.values()))
                    self._remoting.give_up(gone, f"broker {name} is no longer there")
