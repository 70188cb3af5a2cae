"""Trials of hand-overs: queues change their owner while handlers have messages, and another failure happens.

A short failure excuses nothing here unless it is recorded as a trouble: a member of rmqd must tolerate it.
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
"""The time between two cuts. Other members rebalance at most each second, so they may notice the gap or miss it."""
LATE_LISTED_SECONDS: Final = 1.5
"""How late one of several brokers lists a member again: longer than others wait for a member that is in no list."""
DOWN_SECONDS: Final = 1.0
AWAY_SECONDS: Final = 5.0
BACK_SECONDS: Final = 3.0
UNLOCKED_SECONDS: Final = 80.0
"""How long a member is cut off until its locks expire: 60 s, and some more."""
SLUGGISH: Final = Habits(most_seconds=4.0)
BRISK: Final = Habits(most_seconds=0.5)
BACKLOG_ROUNDS: Final = 40
WAITING_SECONDS: Final = 6.0


async def move(history: History, sender: Sender) -> None:
    """A member joins while another one has messages of all queues, which it acquired long ago."""
    await be(history, 1)
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        join(history)
        await asyncio.sleep(MOVE_SECONDS)


async def busy(history: History, sender: Sender) -> None:
    """A member leaves, and brokers are at first too busy for its last commits."""
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
    """Members with messages in flight lose their connections to brokers repeatedly, and reconnect at once each time."""
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
    """Members lose their connections while they hold unhandled messages. No member joins or leaves meanwhile."""
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
    """A member with a backlog is cut off until its locks expire, and another member joins meanwhile."""
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
    """All brokers restart, and so forget their locks, while a new member waits for locks."""
    await be(history, 1)
    with standing(history.members):
        await sender.send(2)
        await asyncio.sleep(AT_WORK_SECONDS)
        join(history)
        await asyncio.sleep(MOVE_SECONDS)
        await _restart(history, "restarted", DOWN_SECONDS)
        await asyncio.sleep(BACK_SECONDS)


async def restart_and_join(history: History, sender: Sender) -> None:
    """All brokers are down for some seconds, and a member without any locks joins at that moment."""
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
