"""Which of a broker's addresses to ask: the route says who there is, the breakers who answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from rmqd.client.remoting import RemotingClient
    from rmqd.client.route_table import RouteTable

log = structlog.get_logger(__name__)


class Replicas:
    """Chooses replicas, and lets go of those that have moved.

    Where a broker is at another address than before, the connection to the old one is closed: it may be to a machine
    that is cut off, and what waits there for an answer is to be asked at the new one.
    """

    def __init__(self, remoting: RemotingClient, routes: RouteTable) -> None:
        self._remoting = remoting
        self._routes = routes
        self._known: dict[str, frozenset[str]] = {}  # addresses by the broker's name
        routes.on_change(self._routes_changed)

    def to_read(self, broker_name: str, broker_id: int = 0) -> str | None:
        """The address that messages are pulled from: this replica's, or another one's while it is not there or down."""
        address = self._routes.address(broker_name, broker_id)
        if address is None or not self._remoting.is_down(address):
            return address
        others = self._routes.brokers().get(broker_name, {}).values()
        return next((other for other in others if not self._remoting.is_down(other)), address)

    def is_reachable(self, broker_name: str) -> bool:
        """Whether a route names the broker, and one of its addresses is connected and not known to be down."""
        addresses = self._routes.brokers().get(broker_name, {}).values()
        return any(self._remoting.connected(at) is not None and not self._remoting.is_down(at) for at in addresses)

    def living_first(self, addresses: Iterable[str]) -> list[str]:
        """The same addresses, those that are down last."""
        return sorted(addresses, key=self._remoting.is_down)

    def _routes_changed(self, _: frozenset[str]) -> None:
        before = self._known
        self._known = {name: frozenset(replicas.values()) for name, replicas in self._routes.brokers().items()}
        in_use = self._routes.broker_addresses()
        for name, addresses in before.items():
            if name not in self._known:
                continue  # perhaps the name servers have just started: the broker may still be there
            for gone in addresses - in_use:
                log.info("broker.moved", broker=name, gone=gone, addresses=sorted(self._known[name]))
                self._remoting.give_up(gone, f"broker {name} is no longer there")
