"""Connections that break, hosts that cannot reach each other, frames that are lost or duplicated."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.happenings.registry import happening
from tests.simulation.network import Noise

if TYPE_CHECKING:
    from tests.simulation.history import History

LOST = (0.0, 0.02, 0.2)
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
    """A member and a broker cannot reach each other for some time."""
    member, broker = history.any_member(chance), chance.choice(history.brokers)
    if member is None:
        return
    seconds = chance.choice(APART_SECONDS)
    pair = frozenset((member.host.name, broker.host.name))
    if pair not in history.network.apart:
        history.trouble("apart", member.name, broker.name, seconds=seconds)
        history.network.apart.add(pair)
        history.loop.call_later(seconds, history.network.apart.discard, pair)


@happening()
async def half(history: History, chance: random.Random) -> None:
    """A member's requests reach a broker, but no responses arrive for some time."""
    member, broker = history.any_member(chance), chance.choice(history.brokers)
    if member is not None:
        seconds = chance.choice(APART_SECONDS)
        pair = member.host.name, broker.host.name
        history.trouble("deaf", member.name, broker.name, seconds=seconds)
        history.network.deaf.add(pair)
        history.loop.call_later(seconds, history.network.deaf.discard, pair)


@happening()
async def noise(history: History, chance: random.Random) -> None:
    """Single requests and responses of a broker are lost, and responses are duplicated, for some time."""
    broker = chance.choice(history.brokers)
    seconds = chance.choice(APART_SECONDS)
    history.trouble("noisy", broker.name, seconds=seconds)
    history.network.noise[broker.name] = Noise(chance.choice(LOST), chance.choice(LOST))
    history.loop.call_later(seconds, history.network.noise.pop, broker.name, None)


@happening()
async def tear(history: History, chance: random.Random) -> None:
    """A connection breaks in the middle of the next frame."""
    if history.network.connections:
        connection = chance.choice(history.network.connections)
        history.trouble("cut", connection.near.host.name, connection.far.host.name)
        connection.tears = True
