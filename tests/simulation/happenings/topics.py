"""The topic grows, shrinks, and loses permissions for some time."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from rmqd.wire.bodies.route_data import PERM_READ, PERM_WRITE
from tests.simulation.cluster import READ_AND_WRITE, Broker
from tests.simulation.happenings.registry import happening
from tests.simulation.names import TOPIC

if TYPE_CHECKING:
    from tests.simulation.history import History

PULLS = ("concurrently", "orderly")
MAX_QUEUES = 8
AWAY_SECONDS = (1.0, 40.0)


@happening(is_trouble=False, weight=0.5, ways=PULLS)
async def grow(history: History, chance: random.Random) -> None:
    """The topic gets more queues on a broker."""
    at = chance.randrange(len(history.brokers))
    broker, queues = history.brokers[at], min(MAX_QUEUES, history.most_queues[at] + chance.randint(1, 3))
    if broker.is_up:
        history.most_queues[at] = queues
        _set(history, broker, f"has {queues} queues", read=queues, write=queues)


@happening(is_trouble=False, weight=0.5, ways=PULLS)
async def shrink(history: History, chance: random.Random) -> None:
    """The last queues of a broker receive no messages for some time, and may become unreadable."""
    at = chance.randrange(len(history.brokers))
    broker, most = history.brokers[at], history.most_queues[at]
    write, read = chance.randint(1, most), chance.choice((most, 0))
    _set(
        history, broker, f"has {write} queues to write to, and {read or write} to read", read=read or write, write=write
    )
    await _restore(history, at, chance)


@happening(is_trouble=False, weight=0.5, ways=PULLS)
async def forbid(history: History, chance: random.Random) -> None:
    """The topic on a broker is not readable, or not writable, for some time."""
    at = chance.randrange(len(history.brokers))
    broker, most = history.brokers[at], history.most_queues[at]
    perm = chance.choice((PERM_READ, PERM_WRITE))
    _set(history, broker, f"has permission {perm}", read=most, write=most, perm=perm)
    await _restore(history, at, chance)


async def _restore(history: History, at: int, chance: random.Random) -> None:
    await asyncio.sleep(chance.uniform(*AWAY_SECONDS))
    queues = history.most_queues[at]
    _set(history, history.brokers[at], f"has {queues} queues again", read=queues, write=queues)


def _set(history: History, broker: Broker, what: str, *, read: int, write: int, perm: int = READ_AND_WRITE) -> None:
    if broker.is_up:
        history.timeline.note(broker.name, f"{TOPIC} {what}")
        history.changes.append(history.timeline.now())
        broker.set_topic(TOPIC, read=read, write=write, perm=perm)
