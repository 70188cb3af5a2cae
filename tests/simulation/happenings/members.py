"""Members join, leave, are killed and suspended."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.simulation.happenings.registry import happening

if TYPE_CHECKING:
    from tests.simulation.history import History

MOST_MEMBERS = 4
PAUSE_SECONDS = (0.5, 5.0, 40.0, 150.0)


@happening(is_trouble=False)
async def join(history: History, chance: random.Random) -> None:
    """A member comes."""
    if len(history.members) < MOST_MEMBERS:
        history.join()


@happening(is_trouble=False, weight=1.0)
async def leave(history: History, chance: random.Random) -> None:
    """A member ends in order."""
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
    """A member is suspended, as by SIGSTOP, and goes on."""
    member = history.any_member(chance)
    if member is not None and not member.host.is_paused:
        seconds = chance.choice(PAUSE_SECONDS)
        history.trouble("paused", member.name, seconds=seconds)
        history.pause(member.host, seconds)
