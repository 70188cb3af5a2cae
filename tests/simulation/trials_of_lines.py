"""Trials in which lines between members and brokers are silent, or lose what they carry."""

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
"""In which the silence is noticed by what is to be committed, and connections are not given up yet."""
NOTICED_SECONDS: Final = (0.3, 1.5)
"""How long after that all is well again: a second connection is just being made, and fails behind that."""
NO_ROUTE_SECONDS: Final = 2.5
POLL_SECONDS: Final = 0.1
COME_SECONDS: Final = 5.0
LOST_SECONDS: Final = 0.3
CUTS: Final = 6
UNLISTED_SECONDS: Final = 0.7
"""For so long brokers take a heartbeat up late; after a second without it others may break the locks."""
DUE_SECONDS: Final = (20.0, 21.7)
"""From one cut to the next: a member divides the queues 20 s after it was listed again, or a second later."""


async def mute(history: History, sender: Sender) -> None:
    """Nothing arrives any more by a member's connections, which nobody ends; new ones carry all."""
    history.harm()
    member = history.members[0]
    history.trouble("deaf", member.name, *(broker.name for broker in history.brokers), seconds=MUTE_SECONDS)
    for connection in history.network.connections:
        if connection.near.host is member.host:
            connection.is_mute = True


async def part(history: History, sender: Sender) -> None:
    """Nothing arrives between a member and the brokers for some time, and no new connection can be made."""
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
    """For a moment all requests and answers are lost, and the connections stand, while a member comes."""
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
    """A member is to divide the queues just when brokers have forgotten it, as its connections were cut."""
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
    """Wait until a member takes a broker to be down, or until it is too late for that."""
    for _ in range(int((MAX_APART_SECONDS - NOTICED_SECONDS[1]) / POLL_SECONDS)):
        await asyncio.sleep(POLL_SECONDS)
        if not all(member.figures().brokers_up.values()):
            return
