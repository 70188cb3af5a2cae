"""Trials in which connections between members and brokers are silent or lose data."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from tests.simulation.network import NEVER_SECONDS, Noise
from tests.simulation.shares import changes, restless
from tests.simulation.trial_steps import be, cut, join

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.members import Member
    from tests.simulation.sender import Sender

MUTE_SECONDS: Final = 20.0
MAX_APART_SECONDS: Final = 14.0
"""How long the partition lasts at most: commits notice the silence, but connections do not fail yet."""
NOTICED_SECONDS: Final = (0.3, 1.5)
"""How long after that the partition ends: a second connection attempt has just begun, and fails afterwards."""
NO_ROUTE_SECONDS: Final = 2.5
POLL_SECONDS: Final = 0.1
COME_SECONDS: Final = 5.0
LOST_SECONDS: Final = 0.3
CUTS: Final = 6
UNLISTED_SECONDS: Final = 0.7
"""The delay of heartbeats at brokers; after a second without a heartbeat, other members may break the locks."""
DUE_SECONDS: Final = (20.0, 21.7)
"""The time between two cuts: a member rebalances 20 s after it was listed again, or a second later."""


async def mute(history: History, sender: Sender) -> None:
    """A member's connections lose all data silently, without being closed; new connections work."""
    history.harm()
    member = history.members[0]
    history.trouble("deaf", member.name, *(broker.name for broker in history.brokers), seconds=MUTE_SECONDS)
    for connection in history.network.connections:
        if connection.near.host is member.host:
            connection.is_mute = True


async def part(history: History, sender: Sender) -> None:
    """A member and the brokers cannot reach each other for some time, and new connections fail."""
    history.harm()
    if len(history.members) < 2:
        join(history)
        await asyncio.sleep(COME_SECONDS)
    await sender.send(1)
    before = changes(history)
    member = history.members[0]
    history.trouble("apart", member.name, *(broker.name for broker in history.brokers), seconds=MAX_APART_SECONDS)
    pairs = {frozenset((member.host.name, broker.host.name)) for broker in history.brokers}
    history.network.apart |= pairs
    history.network.no_route_seconds = NO_ROUTE_SECONDS
    await _noticed(member)
    await asyncio.sleep(random.Random(history.plan.seed).uniform(*NOTICED_SECONDS))
    history.network.apart -= pairs
    history.network.no_route_seconds = NEVER_SECONDS
    history.trial_wrong += restless(history, before, "part")
    sender.sent.update(dict.fromkeys(sender.sent, history.timeline.now()))


async def lose(history: History, sender: Sender) -> None:
    """A member joins, and for a moment all requests and responses are lost, although the connections stay open."""
    history.harm()
    join(history)
    await asyncio.sleep(random.Random(history.plan.seed).uniform(0.0, LOST_SECONDS))
    for broker in history.brokers:
        history.trouble("noisy", broker.name, seconds=LOST_SECONDS)
        history.network.noise[broker.name] = Noise(1.0, 0.0)
    await asyncio.sleep(LOST_SECONDS)
    for broker in history.brokers:
        del history.network.noise[broker.name]


async def unlisted(history: History, sender: Sender) -> None:
    """A member rebalances just when brokers have forgotten it, because its connections were cut."""
    await be(history, 2)
    member, chance = history.members[0], random.Random(history.plan.seed)
    before = changes(history)
    for broker in history.brokers:
        broker.heartbeat_seconds = UNLISTED_SECONDS
    for _ in range(CUTS):
        cut(history, member, [broker.name for broker in history.brokers])
        await asyncio.sleep(chance.uniform(*DUE_SECONDS))
    for broker in history.brokers:
        broker.heartbeat_seconds = 0.0
    history.trial_wrong += restless(history, before, "unlisted", [member])


async def _noticed(member: Member) -> None:
    """Wait until a member considers a broker down, or until it is too late for that."""
    for _ in range(int((MAX_APART_SECONDS - NOTICED_SECONDS[1]) / POLL_SECONDS)):
        await asyncio.sleep(POLL_SECONDS)
        if not all(member.figures().brokers_up.values()):
            return
