"""Brokers that crash, are suspended, or are unreachable."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from tests.simulation.happenings.registry import happening

if TYPE_CHECKING:
    from tests.simulation.history import History

FROZEN_SECONDS = (0.5, 3.0, 10.0, 40.0)
AWAY_SECONDS = (0.1, 20.0)


@happening()
async def crash(history: History, chance: random.Random) -> None:
    """A broker is killed, loses the offsets that were not flushed, and starts again."""
    broker = chance.choice(history.brokers)
    if broker.is_up:
        seconds = chance.uniform(*AWAY_SECONDS)
        history.trouble("crashed", broker.name, seconds=seconds)
        broker.kill()
        await asyncio.sleep(seconds)
        history.timeline.note(broker.name, "starts again")
        await broker.start()


@happening()
async def freeze(history: History, chance: random.Random) -> None:
    """A broker is suspended, and resumes."""
    broker = chance.choice(history.brokers)
    if broker.is_up and not broker.host.is_paused:
        seconds = chance.choice(FROZEN_SECONDS)
        history.trouble("frozen", broker.name, seconds=seconds)
        history.pause(broker.host, seconds)


@happening()
async def seclude(history: History, chance: random.Random) -> None:
    """A broker is unreachable for some time."""
    broker = chance.choice(history.brokers)
    seconds = chance.choice(FROZEN_SECONDS)
    history.trouble("apart", broker.name, seconds=seconds)
    history.network.unreachable.add(broker.host.name)
    history.loop.call_later(seconds, history.network.unreachable.discard, broker.host.name)
