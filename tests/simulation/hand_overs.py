"""Trials of hand-overs: queues change their owner while handlers have messages, and something else goes wrong with it.

What breaks in them for a moment is no excuse here, unless it is noted as a trouble: a member of rmqd is to bear it.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final

from rmqd.codes import RequestCode
from tests.simulation.habits import Habits
from tests.simulation.trial_steps import GONE_SECONDS, be, cut, join, leave, standing

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.sender import Sender

AT_WORK_SECONDS: Final = 0.5
BUSY_SECONDS: Final = 0.5
MOVE_SECONDS: Final = 2.0
BLINK_SECONDS: Final = (*[(2.5, 4.0)] * 20, *[(0.9, 1.3)] * 20)
"""From one to the next. Others look each second at most, so they see that a member is back in between, or miss it."""
LATE_LISTED_SECONDS: Final = 1.5
"""How late one of several brokers lists a member again: for longer than one that is in no list is waited for."""
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
    await be(history, 1)
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        join(history)
        await asyncio.sleep(MOVE_SECONDS)


async def busy(history: History, sender: Sender) -> None:
    """A member leaves, and its brokers are too busy for its last commits at first."""
    await be(history, 2)
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
    await be(history, 2)
    chance = random.Random(history.plan.seed)
    names = [broker.name for broker in history.brokers]
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        for least, most in BLINK_SECONDS:
            lost = chance.choice((names, names[:1], names[-1:]))
            is_listed_elsewhere = len(lost) < len(names)
            for broker in history.brokers:
                is_late = is_listed_elsewhere and broker.name in lost and most > LATE_LISTED_SECONDS
                broker.heartbeat_seconds = LATE_LISTED_SECONDS if is_late else 0.0
            for member in chance.choice((history.members, history.members[:1])):
                cut(history, member, lost)
            await asyncio.sleep(chance.uniform(least, most))
    for broker in history.brokers:
        broker.heartbeat_seconds = 0.0
    sender.sent.clear()


async def win_back(history: History, sender: Sender) -> None:
    """Members lose their connections when they have messages that no handler has yet; no others come meanwhile."""
    history.trouble("cut", *(member.name for member in history.members), *(broker.name for broker in history.brokers))
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        for member in history.members:
            cut(history, member, [broker.name for broker in history.brokers])
    await asyncio.sleep(WAITING_SECONDS)
    history.trial_wrong += sender.late("win_back", WAITING_SECONDS)
    sender.sent.clear()


async def lose_locks(history: History, sender: Sender) -> None:
    """A member with much to do is cut off for so long that its locks end, and another one comes meanwhile."""
    await be(history, 1)
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
    await be(history, 1)
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        join(history)
        await asyncio.sleep(MOVE_SECONDS)
        await _restart(history, "restarted", DOWN_SECONDS)
        await asyncio.sleep(BACK_SECONDS)


async def restart_and_join(history: History, sender: Sender) -> None:
    """All brokers are away for some seconds, and a member comes just then that knows of no locks."""
    await be(history, 1)
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
