"""The owners of the topic's queues: in a group at rest each queue has one owner, and all members have equal shares."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.wrong import Wrong
from tests.simulation.names import TOPIC

if TYPE_CHECKING:
    from tests.simulation.cluster import Broker
    from tests.simulation.history import History
    from tests.simulation.members import Member

LOOKS: Final = 40
LOOKS_BEFORE_IT_IS_BACK: Final = 9
POLL_SECONDS: Final = 0.1


def undivided(history: History, name: str) -> Iterator[Wrong]:
    """Report queues without an owner or with two, and members with too many or too few queues.

    Popped queues have no owner, and every member of a broadcasting group has all queues.
    """
    if history.pops or history.plan.is_broadcasting:
        return
    owners: dict[tuple[str, int], list[str]] = {
        (broker.name, queue): []
        for broker, queues in zip(history.brokers, history.most_queues, strict=True)
        for queue in range(queues)
    }
    counts = Counter(dict.fromkeys((member.name for member in history.members), 0))
    for owner, broker, queue in _had(history.members):
        owners.setdefault((broker, queue), []).append(owner)
        counts[owner] += 1
    now = history.timeline.now()
    for (broker, queue), members in owners.items():
        if len(members) != 1:
            owned = f"is owned by {' and '.join(members)}" if members else "has no owner"
            yield Wrong("not divided", f"queue {queue} of {broker} {owned} at {now:.3f} s ({name})")
    if max(counts.values()) > min(counts.values()) + 1:
        yield Wrong("not divided", f"members have {dict(counts)} queues at {now:.3f} s ({name})")


async def let_go(history: History, broker: Broker) -> list[Wrong]:
    """Report the members of rmqd that release queues of a broker while it restarts.

    Java members divide queues among the members that reconnected before them. If there are other brokers, a rebalance
    that began without this broker's route and ends with it releases its queues for a moment, so the polls end before
    the broker is back.
    """
    of_rmqd = [member for member in history.members if member.snapshot() is not None]
    before, gone = set(_had(of_rmqd)), set[tuple[str, str, int]]()
    for _ in range(LOOKS if len(history.brokers) == 1 else LOOKS_BEFORE_IT_IS_BACK):
        await asyncio.sleep(POLL_SECONDS)
        gone |= before - set(_had(of_rmqd))
    return [
        Wrong("released", f"{member} released queue {queue} of {name}, which was briefly unavailable")
        for member, name, queue in sorted(gone)
        if name == broker.name
    ]


def changes(history: History) -> dict[str, int]:
    """Return how often each current member has acquired or released queues."""
    snapshots = {member.name: member.snapshot() for member in history.members}
    return {name: snapshot.rebalances for name, snapshot in snapshots.items() if snapshot is not None}


def restless(
    history: History, before: dict[str, int], name: str, members: Sequence[Member] | None = None
) -> Iterator[Wrong]:
    """Report members that acquired or released queues since a time, although no member joined or left."""
    named = {one.name for one in (history.members if members is None else members)}
    for member, count in changes(history).items():
        if member in named and count != before.get(member, 0):
            now = history.timeline.now()
            about = f"{member} acquired or released queues, but no member joined or left, before {now:.3f} s ({name})"
            yield Wrong("rebalanced", about)


def _had(members: Iterable[Member]) -> Iterator[tuple[str, str, int]]:
    """Yield the member, broker and number of each queue of the topic."""
    for member in members:
        for broker, queue in member.queues(TOPIC):
            yield member.name, broker, queue
