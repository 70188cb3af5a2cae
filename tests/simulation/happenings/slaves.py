"""Slaves that serve reads for a dead master, and slaves that are behind or down."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.simulation.happenings.registry import happening
from tests.simulation.slave import forget

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.slave import Slave

PART: Final = "slaves"
ALONE_SECONDS: Final = (5.0, 60.0)
BEHIND_SECONDS: Final = (3.0, 15.0, 60.0)
AWAY_SECONDS: Final = (0.1, 20.0)


@happening(part=PART)
async def lose_master(history: History, chance: random.Random) -> None:
    """A broker is killed while its slave may be behind. Meanwhile a new member may replace another one."""
    broker, slave = chance.choice(list(zip(history.brokers, history.slaves, strict=True)))
    behind, seconds = chance.choice((0.0, 5.0, 20.0)), chance.uniform(*ALONE_SECONDS)
    slave.is_cut_off = bool(behind)
    await asyncio.sleep(behind)
    if broker.is_up:
        history.trouble("crashed", broker.name, seconds=seconds)
        broker.kill()
        await asyncio.sleep(seconds / 2)
        if chance.random() < 0.5 and history.members:
            member = history.take_out(chance)
            history.timeline.note(member.name, "leaves")
            member.leave()
            history.join()
        await asyncio.sleep(seconds / 2)
        history.timeline.note(broker.name, "starts again")
        await broker.start()
    slave.is_cut_off = False


@happening(part=PART)
async def leave_behind(history: History, chance: random.Random) -> None:
    """A slave receives nothing from its master for some time."""
    slave, seconds = chance.choice(history.slaves), chance.choice(BEHIND_SECONDS)
    history.timeline.note(slave.name, f"copies nothing for {seconds:g} s")
    slave.is_cut_off = True
    history.loop.call_later(seconds, partial(_go_on, slave))


@happening(part=PART)
async def lose_slave(history: History, chance: random.Random) -> None:
    """A slave is killed, and starts again."""
    slave = chance.choice(history.slaves)
    if slave.is_up:
        seconds = chance.uniform(*AWAY_SECONDS)
        history.timeline.note(slave.name, f"crashed for {seconds:g} s")
        slave.kill()
        forget(history, slave)
        await asyncio.sleep(seconds)
        history.timeline.note(slave.name, "starts again")
        await slave.start()


def _go_on(slave: Slave) -> None:
    slave.is_cut_off = False
