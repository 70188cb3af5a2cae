"""The steps of trials."""

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
"""The time between two rounds of commits."""
ROUND_SECONDS: Final = INTERVAL_SECONDS + 1.0
HANDLED_SECONDS: Final = 1.0
"""How long quick handlers need for a few messages."""
BACK_SECONDS: Final = 20.0
"""How long members need to rebalance and continue."""
POLL_SECONDS: Final = 0.02
CALM_SECONDS: Final = 75.0
"""How long the effects of a failure last: locks expire after 60 s."""
SETTLED_SECONDS: Final = 85.0
"""How long the effects of earlier events last: no trouble excuses later faults."""
GONE_SECONDS: Final = 60.0


def stand_still(members: list[Member]) -> None:
    """Block handlers: they finish no message."""
    for member in members:
        member.handling.may_begin.clear()


def go_on(members: list[Member]) -> None:
    """Unblock handlers."""
    for member in members:
        member.handling.may_begin.set()


@contextmanager
def standing(members: Iterable[Member]) -> Iterator[None]:
    """Block the handlers of these members inside the context."""
    those = list(members)
    stand_still(those)
    yield
    go_on(those)


def join(history: History) -> Member:
    """Let a member join whose handlers are quick."""
    history.join()
    member = history.members[-1]
    member.handling.be_quick()
    return member


def leave(history: History, member: Member, *, process_stays: bool = False) -> None:
    """Ask a member to leave. Its process may keep running, with the same connections."""
    history.members.remove(member)
    history.former.append(member)
    history.timeline.note(member.name, "leaves, and its process stays" if process_stays else "leaves")
    member.process_stays = process_stays
    member.leave()


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition, for some rounds of commits at most."""
    for _ in range(round(3 * INTERVAL_SECONDS / POLL_SECONDS)):
        if is_so():
            return
        await asyncio.sleep(POLL_SECONDS)


def stored_offsets(history: History, name: str) -> dict[int, int]:
    """Return a broker's stored offset of each queue."""
    broker = next(one for one in history.brokers if one.name == name)
    assert broker.controller is not None
    return broker.controller.offsets.queues(GROUP, TOPIC)


def be_quick(history: History) -> None:
    """Make the handlers of all members quick."""
    for member in history.members:
        member.handling.be_quick()


async def be_several(history: History, count: int) -> None:
    """Let members join until there are `count`, and wait for a while."""
    if len(history.members) < count:
        while len(history.members) < count:
            history.join()
        be_quick(history)
        await asyncio.sleep(CALM_SECONDS)


async def be(history: History, count: int) -> None:
    """Let members leave or join until there are exactly `count`, and wait for a while."""
    while len(history.members) > count:
        leave(history, member := history.members[-1])
        await asyncio.wait((member.task,), timeout=GONE_SECONDS)
    while len(history.members) < count:
        join(history)
    await asyncio.sleep(SETTLED_SECONDS)


def cut(history: History, member: Member, brokers: Iterable[str]) -> None:
    """Reset a member's connections to some brokers."""
    history.harm()
    history.cuts.append((history.timeline.now(), member.name))
    names = set(brokers)
    for connection in list(history.network.connections):
        is_there = connection.far.host.name.partition("/")[0] in names
        if connection.near.host is member.host and is_there:
            connection.cut()
