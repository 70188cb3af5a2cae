"""Bugs in queries to name servers, and in the effect of their routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from rmqd.client.routing import name_server_client as name_server
from rmqd.client.routing.name_server_client import first_answer
from rmqd.client.routing.route_table import RouteTable
from tests.nightly.simulation.planted.registry import breaks, plant


@plant(needs=breaks("take_name_server_away"))
def one_name_server_alone(patch: pytest.MonkeyPatch) -> None:
    """Only the first name server is ever queried."""

    async def first(addresses: list[str], *rest: Any, **options: Any) -> tuple[str, Any]:
        return await first_answer(addresses[:1], *rest, **options)

    patch.setattr(name_server, "first_answer", first)


@plant(needs=breaks("move"))
def old_address_kept(patch: pytest.MonkeyPatch) -> None:
    """A broker that has moved is still contacted at its first address."""
    right = RouteTable.replicas
    first: WeakKeyDictionary[RouteTable, dict[str, Mapping[int, str]]] = WeakKeyDictionary()

    def replicas(self: RouteTable, broker_name: str) -> Mapping[int, str]:
        known = right(self, broker_name)
        return first.setdefault(self, {}).setdefault(broker_name, known) if known else known

    patch.setattr(RouteTable, "replicas", replicas)
