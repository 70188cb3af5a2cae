"""The end of a history: all failures end, and the group comes to rest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.popped import latest_retry
from tests.simulation.names import TOPIC

if TYPE_CHECKING:
    from tests.simulation.history import History

UNDER_WAY_SECONDS: Final = 3.0
"""How long sent messages may take to arrive after the last failure."""
PATIENCE_SECONDS: Final = 600.0


def calm(history: History) -> None:
    """End all failures."""
    history.timeline.note("judge", "all is well from here on")
    _repair(history)
    history.changes.append(history.timeline.now())
    history.options = history.first_options
    for home in history.homes:
        if home.members[-1] not in history.members:
            history.come_back(home.members[-1])
    if not history.members and not history.homes:
        history.join()
    for member in history.members:
        member.call(member.consumer.resume)
        member.host.spawn(member.change(history.options))


def _repair(history: History) -> None:
    """Restore the network, all hosts and the topic to their initial state."""
    network = history.network
    network.slow = 0.0
    for one in history.brokers:
        one.commits.late = 0.0
    for broken in (network.apart, network.deaf, network.unreachable, network.noise):
        broken.clear()
    for name_server in history.name_servers:
        name_server.deaf_to.clear()
        name_server.late_seconds = 0.0
    for slave in history.slaves:
        slave.is_cut_off = False
    for host in history.paused:
        history.resume(host)
    for broker, queues in zip(history.brokers, history.most_queues, strict=True):
        if broker.is_up:
            broker.set_topic(TOPIC, read=queues, write=queues)


async def come_to_rest(history: History) -> bool:
    """Wait until all messages are handled. Return whether they are."""
    quiet_at = history.timeline.now()
    await asyncio.sleep(UNDER_WAY_SECONDS)
    waiting = history.stored()
    while True:
        waiting = {key: places for key, places in waiting.items() if not history.is_settled(key, places)}
        history.due_seconds = max(history.due_seconds, latest_retry(history, waiting, quiet_at))
        if not waiting or history.timeline.now() > quiet_at + PATIENCE_SECONDS + history.due_seconds:
            break
        before = delivered(history)
        await asyncio.sleep(1.0)
        history.idle_seconds += before == delivered(history)
    return not waiting


def delivered(history: History) -> int:
    """Return the number of deliveries."""
    return sum(ledger.delivered for ledger in history.ledgers)
