"""Trials in which members join and leave, and limits of the requests to brokers meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from rmqd.codes import RequestCode
from tests.simulation.judging.wrong import Wrong
from tests.simulation.shares import undivided
from tests.simulation.trial_steps import join, leave, standing

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.members import Member
    from tests.simulation.sender import Sender

TOGETHER_SECONDS: Final = 0.01
CROWDS: Final = 4
CROWD_SECONDS: Final = 5.0
VISIT_SECONDS: Final = 1.5
BEHIND_SECONDS: Final = 1.0
"""How long after a visitor left the handlers continue: all members have rebalanced by then."""
GLANCES: Final = 8
GLANCE_SECONDS: Final = (0.001, 0.03)
HEARTBEAT_SECONDS: Final = 0.03
"""How long a broker takes for a heartbeat: it handles later requests of the same connection first."""
POLL_SECONDS: Final = 0.001
MAX_LISTS: Final = 20
"""How often a member may query the group's members while others join and leave: for two topics, each second."""


async def crowd(history: History, sender: Sender) -> None:
    """Two members join at nearly the same time and leave together, repeatedly."""
    chance = random.Random(history.plan.seed)
    for _ in range(CROWDS):
        comers = [join(history)]
        await asyncio.sleep(chance.uniform(0.0, TOGETHER_SECONDS))
        comers.append(join(history))
        await asyncio.sleep(CROWD_SECONDS)
        history.trial_wrong += undivided(history, "crowd")
        for member in comers:
            leave(history, member, process_stays=True)
        await asyncio.wait([member.task for member in comers])
        await asyncio.sleep(CROWD_SECONDS)
        history.trial_wrong += undivided(history, "crowd")


async def visit(history: History, sender: Sender) -> None:
    """A member joins and leaves while handlers are blocked: the queues meant for it stay with their owners."""
    with standing(history.members):
        await sender.send(2)
        visitor = join(history)
        await asyncio.sleep(VISIT_SECONDS)
        leave(history, visitor, process_stays=True)
        await asyncio.sleep(BEHIND_SECONDS)
    now = history.timeline.now()
    sender.sent.update(dict.fromkeys(sender.sent, now))


async def glances(history: History, sender: Sender) -> None:
    """Members leave as soon as brokers know them, and their processes keep running: other members do not count them."""
    chance = random.Random(history.plan.seed)
    before = {member: _lists(member) for member in history.members}
    for broker in history.brokers:
        broker.heartbeat_seconds = HEARTBEAT_SECONDS
    for _ in range(GLANCES):
        visitor = join(history)
        await _connected(history, visitor)
        await asyncio.sleep(chance.uniform(*GLANCE_SECONDS))
        leave(history, visitor, process_stays=True)
        await asyncio.wait((visitor.task,))
    for broker in history.brokers:
        broker.heartbeat_seconds = 0.0
    history.trial_wrong += _too_many_lists(before)


def _too_many_lists(before: dict[Member, int]) -> Iterator[Wrong]:
    """Report members that queried the group's members at every notification."""
    for member, count in before.items():
        asked = _lists(member) - count
        if asked > MAX_LISTS:
            yield Wrong("too many passes", f"{member.name} asked for the group's members {asked} times meanwhile")


def _lists(member: Member) -> int:
    answered = member.figures().requests.get(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    return 0 if answered is None else answered.count


async def _connected(history: History, member: Member) -> None:
    """Wait until a member has a connection to each replica of each broker."""
    replicas = {broker.host for broker in history.brokers} | {slave.host for slave in history.slaves}
    while replicas - {one.far.host for one in history.network.connections if one.near.host is member.host}:  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)
