"""Trials of what becomes of an operator's resets at bad moments.

Each is one of `trials`; whether all that was reset came again is judged at the history's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.happenings.operators import FILTERS, push_reset, set_offset, subscribe
from tests.simulation.judging.passed import ALL_TAGS, Reset
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Stored
from tests.simulation.names import GROUP, TOPIC
from tests.simulation.trial_steps import (
    BACK_SECONDS,
    HANDLED_SECONDS,
    ROUND_SECONDS,
    go_on,
    join,
    leave,
    stand_still,
    stored_offsets,
    until,
)

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.sender import Sender

REWOUND: Final = 5
"""How many messages a reset goes back."""
TOLD_SECONDS: Final = 1.0
STORED_SECONDS: Final = 7.0
"""In which a reset that was told is stored, behind a commit before it, and no later round has replaced it."""
LEAVE_SECONDS: Final = 40.0


async def rewind(history: History, sender: Sender) -> None:
    """Offsets are set back while commits are under way, and handlers begin nothing until that is stored."""
    await _rewind(history, sender, _set_back)


async def rewind_by_push(history: History, sender: Sender) -> None:
    """The same, and brokers tell the members."""
    await _rewind(history, sender, _push_back)


async def rewind_the_last(history: History, sender: Sender) -> None:
    """The last member leaves, and brokers tell it of a reset while its handlers are at work; then another one comes."""
    *others, last = history.members
    for member in others:
        leave(history, member)
    await asyncio.sleep(BACK_SECONDS)
    await sender.send(1)
    await asyncio.sleep(HANDLED_SECONDS)
    stand_still([last])
    await sender.send(2)
    leave(history, last)
    await asyncio.sleep(HANDLED_SECONDS)
    pushes = _push_back(history)
    await asyncio.gather(*pushes)
    go_on([last])
    await asyncio.wait((last.task,), timeout=LEAVE_SECONDS)
    join(history)
    sender.sent.clear()  # some may be passed over


async def rewind_behind_a_filter(history: History, sender: Sender) -> None:
    """The members take over another filter, and offsets are set back: the broker tells pulls of before."""
    await sender.send(1)
    await asyncio.sleep(ROUND_SECONDS)
    await subscribe(history, FILTERS[1])
    await asyncio.sleep(HANDLED_SECONDS)
    _set_back(history)
    await sender.send(2)
    await asyncio.sleep(ROUND_SECONDS)
    await subscribe(history, ALL_TAGS)


async def _rewind(history: History, sender: Sender, reset: Callable[[History], list[asyncio.Task[None]]]) -> None:
    for broker in history.brokers:
        broker.commits.late, broker.commits.late_seconds = 1.0, (1.0, 1.0)
    members, began = list(history.members), history.timeline.now()
    await sender.send(1)
    await asyncio.sleep(HANDLED_SECONDS)
    if history.plan.seed % 2:  # the commit under way is one that a pull carries, and those after it are not late
        await sender.send(1)
        await until(lambda: any(broker.commits.waiting_pulls for broker in history.brokers))
        for broker in history.brokers:
            broker.commits.late = 0.0
        stand_still(members)
    else:
        stand_still(members)
        await until(lambda: any(broker.commits.waiting for broker in history.brokers))
    orders = reset(history)
    await sender.send(2)
    await asyncio.sleep(TOLD_SECONDS)
    told = [one for one in _resets(history, began) if not _is_pending(history, one) and one not in history.unheard]
    await asyncio.sleep(STORED_SECONDS)
    for one in told:
        stored = stored_offsets(history, one.broker)[one.queue]
        if stored != one.offset:
            about = f"{one.broker} queue {one.queue} has {stored}, and was set to {one.offset}, without progress since"
            history.trial_wrong.append(Wrong("reset", about))
    await asyncio.gather(*orders)
    for broker in history.brokers:
        broker.commits.late = 0.0
    go_on(members)


def _set_back(history: History) -> list[asyncio.Task[None]]:
    """Set the offset of each queue back by some messages, of which the next pull is told."""
    for broker in history.brokers:
        for queue, stored in stored_offsets(history, broker.name).items():
            if stored:
                set_offset(history, broker, queue, max(0, stored - REWOUND))
    return []


def _push_back(history: History) -> list[asyncio.Task[None]]:
    """Have brokers tell of a reset to the time of a late message."""
    pushes = []
    for broker in history.brokers:
        times = [row.store_timestamp for row in broker.disk.records() if row.topic == TOPIC][-REWOUND:]
        pushes += [asyncio.create_task(push_reset(history, broker, time)) for time in times[:1]]
    return pushes


def _resets(history: History, began: float) -> Iterator[Reset]:
    """The latest reset of each queue since then."""
    for broker in history.brokers:
        for queue in stored_offsets(history, broker.name):
            yield from (one for one in history.passed.resets(Stored(broker.name, queue, 0))[-1:] if one.at >= began)


def _is_pending(history: History, reset: Reset) -> bool:
    """Whether no pull has been told of it."""
    broker = next(one for one in history.brokers if one.name == reset.broker)
    assert broker.controller is not None
    return broker.controller.offsets.pending_reset(GROUP, TOPIC, reset.queue) is not None
