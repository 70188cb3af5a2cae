"""Trials of hand-overs: queues change their owner while handlers have messages, and something else goes wrong with it.

What breaks in them for a moment is no excuse here, unless it is noted as a trouble: a member of rmqd is to bear it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from rmqd.codes import RequestCode
from tests.simulation.habits import Habits
from tests.simulation.trial_steps import join, leave, standing

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.members.member import Member
    from tests.simulation.trials import Sender

SETTLED_SECONDS: Final = 85.0
"""After which nothing is left of what was before: locks end after 60 s, and no trouble excuses what comes so late."""
GONE_SECONDS: Final = 60.0
AT_WORK_SECONDS: Final = 0.5
BUSY_SECONDS: Final = 0.5
MOVE_SECONDS: Final = 2.0
BLINKS: Final = 20
BLINK_SECONDS: Final = ((2.5, 4.0), (0.9, 1.3))
"""From one to the next. Others look each second at most, so they see that a member is back in between, or miss it."""
DOWN_SECONDS: Final = 1.0
AWAY_SECONDS: Final = 5.0
BACK_SECONDS: Final = 3.0
UNLOCKED_SECONDS: Final = 80.0
"""For so long a member is cut off, so that its locks end: after 60 s, and a moment more."""
SLUGGISH: Final = Habits(most_seconds=4.0)
BRISK: Final = Habits(most_seconds=0.5)
BACKLOG_ROUNDS: Final = 40
WAITING_SECONDS: Final = 6.0


async def move(history: History, sender: Sender) -> None:
    """A member comes while another one has messages of all queues, which it took over long ago."""
    await _be(history, 1)
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        join(history)
        await asyncio.sleep(MOVE_SECONDS)


async def busy(history: History, sender: Sender) -> None:
    """A member leaves, and its brokers are too busy for its last commits at first."""
    await _be(history, 2)
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        leave(history, member := history.members[-1])
        await asyncio.sleep(AT_WORK_SECONDS)
        history.harm()
        for broker in history.brokers:
            broker.refused.add(RequestCode.UPDATE_CONSUMER_OFFSET)
    await asyncio.sleep(BUSY_SECONDS)
    for broker in history.brokers:
        broker.refused.clear()
    await asyncio.wait((member.task,), timeout=GONE_SECONDS)


async def blink(history: History, sender: Sender) -> None:
    """Members at work lose their connections to brokers, time and again; each time they are back at once."""
    await _be(history, 2)
    chance = random.Random(history.plan.seed)
    names = [broker.name for broker in history.brokers]
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        for pause_seconds in (chance.uniform(*least_and_most) for least_and_most in BLINK_SECONDS for _ in range(BLINKS)):
            lost = chance.choice((names, names[:1], names[-1:]))
            for member in chance.choice((history.members, history.members[:1])):
                _cut(history, member, lost)
            await asyncio.sleep(pause_seconds)
    sender.sent.clear()


async def win_back(history: History, sender: Sender) -> None:
    """Members lose their connections when they have messages that no handler has yet; no others come meanwhile."""
    history.trouble("cut", *(member.name for member in history.members), *(broker.name for broker in history.brokers))
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        for member in history.members:
            _cut(history, member, [broker.name for broker in history.brokers])
    await asyncio.sleep(WAITING_SECONDS)
    history.trial_wrong += sender.late("win_back", WAITING_SECONDS)
    sender.sent.clear()


async def lose_locks(history: History, sender: Sender) -> None:
    """A member with much to do is cut off for so long that its locks end, and another one comes meanwhile."""
    await _be(history, 1)
    member, brokers = history.members[0], [broker.host.name for broker in history.brokers]
    history.trouble("apart", member.name, *(broker.name for broker in history.brokers), seconds=UNLOCKED_SECONDS)
    member.handling.habits = SLUGGISH
    await sender.send(BACKLOG_ROUNDS)
    pairs = {frozenset((member.host.name, broker)) for broker in brokers}
    history.network.apart |= pairs
    join(history)
    await asyncio.sleep(UNLOCKED_SECONDS)
    history.network.apart -= pairs
    member.handling.be_quick()
    sender.sent.clear()


async def restart(history: History, sender: Sender) -> None:
    """All brokers are restarted while a member that has come waits for locks, and forget who has them."""
    await _be(history, 1)
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        join(history)
        await asyncio.sleep(MOVE_SECONDS)
        await _restart(history, "restarted", DOWN_SECONDS)
        await asyncio.sleep(BACK_SECONDS)


async def restart_and_join(history: History, sender: Sender) -> None:
    """All brokers are away for some seconds, and a member comes just then that knows of no locks."""
    await _be(history, 1)
    history.members[0].handling.habits = BRISK
    await sender.send(BACKLOG_ROUNDS)
    join(history)
    history.members[1].handling.habits = BRISK
    await _restart(history, "crashed", AWAY_SECONDS)
    await asyncio.sleep(BACK_SECONDS)
    for member in history.members:
        member.handling.be_quick()
    sender.sent.clear()


async def _restart(history: History, what: str, seconds: float) -> None:
    for broker in history.brokers:
        history.trouble(what, broker.name, seconds=seconds)
        broker.kill()
    await asyncio.sleep(seconds)
    for broker in history.brokers:
        history.timeline.note(broker.name, "starts again")
        await broker.start()


async def _be(history: History, count: int) -> None:
    """Have just so many members, for long enough."""
    while len(history.members) > count:
        leave(history, member := history.members[-1])
        await asyncio.wait((member.task,), timeout=GONE_SECONDS)
    while len(history.members) < count:
        join(history)
    await asyncio.sleep(SETTLED_SECONDS)


def _cut(history: History, member: Member, brokers: Iterable[str]) -> None:
    """Reset a member's connections to some brokers."""
    history.harm()
    names = set(brokers)
    for connection in list(history.network.connections):
        is_there = connection.far.host.name.partition("/")[0] in names
        if connection.near.host is member.host and is_there:
            connection.cut()
