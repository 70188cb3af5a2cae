"""Members join, leave, are killed and suspended; handlers hang, and stops are rushed."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from tests.simulation.happenings.registry import happening
from tests.simulation.members import JavaMember

if TYPE_CHECKING:
    from tests.simulation.history import History

MAX_MEMBERS = 4
HANGS = (1, 2, 5)
RUSHED_SECONDS = (0.0, 0.1, 1.0)
POLL_SECONDS = 30.0  # the interval of route queries
PAUSE_SECONDS = (0.5, 5.0, 40.0, 150.0)


@happening(is_trouble=False)
async def join(history: History, chance: random.Random) -> None:
    """A member joins."""
    if len(history.members) < MAX_MEMBERS:
        history.join()
        if len(history.brokers) > 1 and history.timeline.now() < history.half_known_until:
            # The member may learn the queues of some brokers only and divide these, while the others divide all queues.
            history.trouble("half a route", history.members[-1].name, seconds=POLL_SECONDS)


@happening(is_trouble=False, weight=1.0)
async def leave(history: History, chance: random.Random) -> None:
    """A member stops normally."""
    if len(history.members) > 1:
        member = history.take_out(chance)
        history.timeline.note(member.name, "leaves")
        member.leave()


@happening()
async def kill(history: History, chance: random.Random) -> None:
    """A member ends at once, as by SIGKILL."""
    if len(history.members) > 1:
        member = history.take_out(chance)
        history.trouble("killed", member.name)
        member.kill()


@happening()
async def pause(history: History, chance: random.Random) -> None:
    """A member is suspended, as by SIGSTOP, and resumes."""
    member = history.any_member(chance)
    if member is not None and not member.host.is_paused:
        seconds = chance.choice(PAUSE_SECONDS)
        history.trouble("paused", member.name, seconds=seconds)
        history.pause(member.host, seconds)


@happening()
async def hang(history: History, chance: random.Random) -> None:
    """The next calls of a member's handler do not return, until consume_timeout or shortly after it."""
    member = history.any_member(chance)
    if member is not None and not isinstance(member, JavaMember):  # a Java orderly handler may hang forever
        member.handling.hangs = chance.choice(HANGS)
        history.trouble("hangs", member.name)


@happening()
async def rush(history: History, chance: random.Random) -> None:
    """A member stops with little or no time for its handlers. Then a new member replaces it."""
    if history.members:
        member = history.take_out(chance)
        history.trouble("rushed", member.name)
        if chance.random() < 0.5:
            member.call(member.consumer.force_stop)
        else:
            seconds = chance.choice(RUSHED_SECONDS)
            member.call(lambda: member.consumer.stop(shutdown_timeout_seconds=seconds))
        history.join()


@happening()
async def stutter(history: History, chance: random.Random) -> None:
    """A member's event loop is blocked repeatedly."""
    member = history.any_member(chance)
    if member is not None:
        history.trouble("paused", member.name, seconds=5.0)
        for _ in range(5):
            if not member.host.is_paused:
                history.pause(member.host, chance.uniform(0.1, 0.9))
            await asyncio.sleep(1.0)
