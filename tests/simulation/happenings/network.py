"""Connections that break, and hosts that cannot reach each other."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.happenings.registry import happening

if TYPE_CHECKING:
    from tests.simulation.history import History

APART_SECONDS = (0.5, 3.0, 10.0, 40.0)


@happening()
async def cut(history: History, chance: random.Random) -> None:
    """A connection is reset, maybe in the middle of a frame."""
    if history.network.connections:
        connection = chance.choice(history.network.connections)
        history.trouble("cut", connection.near.host.name, connection.far.host.name)
        connection.cut()


@happening()
async def partition(history: History, chance: random.Random) -> None:
    """For some time nothing arrives between a member and a broker."""
    member, broker = history.any_member(chance), chance.choice(history.brokers)
    if member is None:
        return
    seconds = chance.choice(APART_SECONDS)
    pair = frozenset((member.host.name, broker.host.name))
    if pair not in history.network.apart:
        history.trouble("apart", member.name, broker.name, seconds=seconds)
        history.network.apart.add(pair)
        history.loop.call_later(seconds, history.network.apart.discard, pair)
