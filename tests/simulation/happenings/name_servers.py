"""Name servers that crash, leave, are unreachable or slow, or have old routes; and a broker that moves.

These events excuse no duplicates, because members keep the queues of the routes that they know. The exception is a
route that names only a broker's slave.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Final

from tests.simulation.happenings.registry import happening
from tests.simulation.name_servers import REGISTER_SECONDS
from tests.simulation.slave import leave_to_slaves

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.name_servers import NameServer

PART: Final = "name servers"
AWAY_SECONDS: Final = (0.1, 30.0)
BROKEN_SECONDS: Final = (1.0, 10.0, 60.0)
OLD_SECONDS: Final = (20.0, 60.0, 150.0)
LATE_SECONDS: Final = (0.3, 1.0, 4.0, 20.0)


@happening(part=PART)
async def lose_name_server(history: History, chance: random.Random) -> None:
    """A name server is killed, and starts again without routes: brokers register within 30 s."""
    name_server = chance.choice(history.name_servers)
    if name_server.is_up:
        seconds = chance.uniform(*AWAY_SECONDS)
        history.timeline.note(name_server.name, f"crashed for {seconds:g} s")
        leave_to_slaves(history, [broker.name for broker in history.brokers], seconds + REGISTER_SECONDS)
        name_server.kill()
        await asyncio.sleep(seconds)
        if not name_server.is_removed:
            history.timeline.note(name_server.name, "starts again")
            history.half_known_until = history.timeline.now() + REGISTER_SECONDS
            await name_server.start()


@happening(part=PART)
async def take_name_server_away(history: History, chance: random.Random) -> None:
    """A name server is removed, if another one is left."""
    there = [one for one in history.name_servers if not one.is_removed]
    if len(there) > 1:
        name_server = chance.choice(there)
        history.timeline.note(name_server.name, "is taken away")
        name_server.is_removed = True
        name_server.kill()


@happening(part=PART)
async def hide_name_server(history: History, chance: random.Random) -> None:
    """A name server is unreachable for some time."""
    name_server, seconds = chance.choice(history.name_servers), chance.choice(BROKEN_SECONDS)
    history.timeline.note(name_server.name, f"unreachable for {seconds:g} s")
    history.network.unreachable.add(name_server.host.name)
    history.loop.call_later(seconds, history.network.unreachable.discard, name_server.host.name)


@happening(part=PART)
async def freeze_name_server(history: History, chance: random.Random) -> None:
    """A name server is suspended, and resumes."""
    name_server, seconds = chance.choice(history.name_servers), chance.choice(BROKEN_SECONDS)
    if name_server.is_up and not name_server.host.is_paused:
        history.timeline.note(name_server.name, f"frozen for {seconds:g} s")
        history.pause(name_server.host, seconds)


@happening(part=PART)
async def slow_name_server(history: History, chance: random.Random) -> None:
    """A name server answers slowly."""
    name_server, seconds = chance.choice(history.name_servers), chance.choice(BROKEN_SECONDS)
    name_server.late_seconds = chance.choice(LATE_SECONDS)
    history.timeline.note(name_server.name, f"late by {name_server.late_seconds:g} s for {seconds:g} s")
    history.loop.call_later(seconds, setattr, name_server, "late_seconds", 0.0)


@happening(part=PART)
async def old_routes(history: History, chance: random.Random) -> None:
    """A name server receives no registrations of one broker, or of all, and drops them after two minutes."""
    name_server, seconds = chance.choice(history.name_servers), chance.choice(OLD_SECONDS)
    names = [broker.name for broker in history.brokers]
    some = chance.choice((names, [chance.choice(names)]))
    history.timeline.note(name_server.name, f"hears nothing of {' and '.join(some)} for {seconds:g} s")
    name_server.deaf_to.update(some)
    leave_to_slaves(history, some, seconds + REGISTER_SECONDS)
    history.loop.call_later(seconds, partial(_hear, name_server, some))


@happening(part=PART)
async def move(history: History, chance: random.Random) -> None:
    """A broker is killed, and starts again at another address."""
    broker = chance.choice(history.brokers)
    if broker.is_up:
        seconds = chance.uniform(*AWAY_SECONDS)
        history.trouble("crashed", broker.name, seconds=seconds)
        broker.kill()
        broker.move()
        await asyncio.sleep(seconds)
        history.timeline.note(broker.name, f"starts at {broker.address}")
        await broker.start()


def _hear(name_server: NameServer, brokers: list[str]) -> None:
    name_server.deaf_to.difference_update(brokers)
