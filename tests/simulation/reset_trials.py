"""Trials of an operator's resets at bad moments.

Each is one of `trials`. The end of the history checks that all reset messages were redelivered.
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
"""How long a reported reset may need until it is stored after an earlier commit, and no later round has replaced it."""
LEAVE_SECONDS: Final = 40.0


async def rewind(history: History, sender: Sender) -> None:
    """Offsets are set back while commits are in transit. Handlers are blocked until the reset is stored."""
    await _rewind(history, sender, _set_back)


async def rewind_by_push(history: History, sender: Sender) -> None:
    """Offsets are set back as in `rewind`, by resets that brokers push to members."""
    await _rewind(history, sender, _push_back)


async def rewind_the_last(history: History, sender: Sender) -> None:
    """Brokers push a reset to the last member while it leaves and its handlers run; then another member joins."""
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
    sender.sent.clear()  # some messages may be skipped


async def rewind_behind_a_filter(history: History, sender: Sender) -> None:
    """Members apply another filter, and offsets are set back: pulls with the old filter report the reset."""
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
    if history.plan.seed % 2:  # a pull carries the late commit; later commits are not late
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
    """Set the offset of each queue back by some messages; the next pull response reports it."""
    for broker in history.brokers:
        for queue, stored in stored_offsets(history, broker.name).items():
            if stored:
                set_offset(history, broker, queue, max(0, stored - REWOUND))
    return []


def _push_back(history: History) -> list[asyncio.Task[None]]:
    """Let brokers push a reset to the time of a late message."""
    pushes = []
    for broker in history.brokers:
        times = [row.store_timestamp for row in broker.disk.records() if row.topic == TOPIC][-REWOUND:]
        pushes += [asyncio.create_task(push_reset(history, broker, time)) for time in times[:1]]
    return pushes


def _resets(history: History, began: float) -> Iterator[Reset]:
    """Return the latest reset of each queue since a time."""
    for broker in history.brokers:
        for queue in stored_offsets(history, broker.name):
            yield from (one for one in history.passed.resets(Stored(broker.name, queue, 0))[-1:] if one.at >= began)


def _is_pending(history: History, reset: Reset) -> bool:
    """Whether no pull response has reported the reset yet."""
    broker = next(one for one in history.brokers if one.name == reset.broker)
    assert broker.controller is not None
    return broker.controller.offsets.pending_reset(GROUP, TOPIC, reset.queue) is not None
