"""Brokers that crash."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from tests.simulation.happenings.registry import happening

if TYPE_CHECKING:
    from tests.simulation.history import History

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
