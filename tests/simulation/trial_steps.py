"""What trials are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tests.simulation.names import GROUP, TOPIC

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.members import Member

INTERVAL_SECONDS: Final = 5.0
"""Between two rounds of commits."""
ROUND_SECONDS: Final = INTERVAL_SECONDS + 1.0
HANDLED_SECONDS: Final = 1.0
"""In which handlers that are quick have done a few messages."""
BACK_SECONDS: Final = 20.0
"""In which members have divided the queues anew, and gone on."""
POLL_SECONDS: Final = 0.02
CALM_SECONDS: Final = 75.0
"""After which nothing is left of what broke: locks end after 60 s."""
SETTLED_SECONDS: Final = 85.0
"""After which nothing is left of what was before: no trouble excuses what comes so late."""
GONE_SECONDS: Final = 60.0


def stand_still(members: list[Member]) -> None:
    """Have handlers begin nothing, and not end what they are given."""
    for member in members:
        member.handling.may_begin.clear()


def go_on(members: list[Member]) -> None:
    """Let handlers go on."""
    for member in members:
        member.handling.may_begin.set()


@contextmanager
def standing(members: Iterable[Member]) -> Iterator[None]:
    """Have the handlers of these members stand still meanwhile."""
    those = list(members)
    stand_still(those)
    yield
    go_on(those)


def join(history: History) -> Member:
    """A member comes, whose handlers are quick."""
    history.join()
    member = history.members[-1]
    member.handling.be_quick()
    return member


def leave(history: History, member: Member, *, process_stays: bool = False) -> None:
    """A member is told to end in order; what else its process does may go on, by the same connections."""
    history.members.remove(member)
    history.former.append(member)
    history.timeline.note(member.name, "leaves, and its process stays" if process_stays else "leaves")
    member.process_stays = process_stays
    member.leave()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, for some rounds of commits at most."""
    for _ in range(round(3 * INTERVAL_SECONDS / POLL_SECONDS)):
        if is_so():
            return
        await asyncio.sleep(POLL_SECONDS)


def stored_offsets(history: History, name: str) -> dict[int, int]:
    """What a broker has stored for each queue."""
    broker = next(one for one in history.brokers if one.name == name)
    assert broker.controller is not None
    return broker.controller.offsets.queues(GROUP, TOPIC)


def be_quick(history: History) -> None:
    """Have the handlers of all members be quick."""
    for member in history.members:
        member.handling.be_quick()


async def be_several(history: History, count: int) -> None:
    """Have so many members at least, for long enough."""
    if len(history.members) < count:
        while len(history.members) < count:
            history.join()
        be_quick(history)
        await asyncio.sleep(CALM_SECONDS)


async def be(history: History, count: int) -> None:
    """Have just so many members, for long enough."""
    while len(history.members) > count:
        leave(history, member := history.members[-1])
        await asyncio.wait((member.task,), timeout=GONE_SECONDS)
    while len(history.members) < count:
        join(history)
    await asyncio.sleep(SETTLED_SECONDS)


def cut(history: History, member: Member, brokers: Iterable[str]) -> None:
    """Reset a member's connections to some brokers."""
    history.harm()
    names = set(brokers)
    for connection in list(history.network.connections):
        is_there = connection.far.host.name.partition("/")[0] in names
        if connection.near.host is member.host and is_there:
            connection.cut()
