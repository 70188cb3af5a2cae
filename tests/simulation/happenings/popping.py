"""Changes of the way a group pops, by administrators and operators."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmqd.wire.bodies.pop_bodies import MessageRequestMode
from tests.simulation.happenings.operators import change_options
from tests.simulation.happenings.registry import happening
from tests.simulation.names import GROUP, TOPIC

if TYPE_CHECKING:
    from tests.simulation.history import History

WAYS: Final = ("pop",)


@happening(is_trouble=False, weight=0.5, ways=WAYS)
async def switch(history: History, chance: random.Random) -> None:
    """The group switches from pop to pull, or back. Each member notices within 20 s."""
    if all(broker.is_up and not broker.host.is_paused for broker in history.brokers):
        _set_mode(history, "pull" if history.pops else "pop", chance.choice((0, 1, 2)))
        history.switched.append(history.timeline.now())


@happening(is_trouble=False, weight=0.5, ways=WAYS)
async def share_otherwise(history: History, chance: random.Random) -> None:
    """Each member pops all queues from now on, or its own and those of some other members."""
    if history.pops and all(broker.is_up and not broker.host.is_paused for broker in history.brokers):
        _set_mode(history, "pop", chance.choice((0, 1, 2)))


@happening(is_trouble=False, weight=0.5, ways=WAYS)
async def pop_otherwise(history: History, chance: random.Random) -> None:
    """All running members apply other pop options."""
    invisible_seconds = chance.choice((5.0, 10.0, 20.0, 60.0))
    options = replace(
        history.options,
        pop_invisible_time_seconds=invisible_seconds,
        pop_batch_nums=chance.choice((1, 4, 32)),
        pop_threshold_for_queue=chance.choice((1, 8, 96)),
    )
    history.most_invisible_seconds = max(history.most_invisible_seconds, invisible_seconds)
    history.timeline.note("operator", f"hides what is popped for {invisible_seconds:g} s")
    await change_options(history, options)


def _set_mode(history: History, mode: str, share_queues: int) -> None:
    history.pops = mode == "pop"
    history.timeline.note("operator", f"has the group {mode}, and each member share with {share_queues or 'all'}")
    for broker in history.brokers:
        broker.set_mode(TOPIC, GROUP, MessageRequestMode[mode.upper()], share_queues)
