"""The queues that the broker assigns to a member for pull or pop (`QueryAssignmentProcessor.java`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.pop import ANY_QUEUE

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own client id, all queues sorted, all client ids sorted) -> own queues"""


def averagely(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """Give members contiguous shares. The first members get one more if the queues do not divide evenly."""
    if client_id not in client_ids:
        return []
    index, (share, rest) = client_ids.index(client_id), divmod(len(queues), len(client_ids))
    start = index * share + min(index, rest)
    return list(queues[start : start + share + (index < rest)])


def averagely_by_circle(
    client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """Give queues to members in turn."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


STRATEGIES: Final[Mapping[str, Allocate]] = MappingProxyType({"AVG": averagely, "AVG_BY_CIRCLE": averagely_by_circle})
"""The strategies that brokers have, by their names in requests."""


def allocate_for_pop(
    allocate: Allocate,
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    share_queues: int,
) -> set[MessageQueue]:
    """Return the queues that a member pops: any of the broker, or its own and the queues of `share_queues` others."""
    if share_queues <= 0 or share_queues >= len(client_ids) - 1:
        return {MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE) for queue in queues}
    if len(client_ids) > len(queues):
        if client_id not in client_ids or not queues:
            return set()
        return {queues[client_ids.index(client_id) % len(queues)]}
    own = set(allocate(client_id, queues, client_ids))
    if client_id in client_ids:
        index = client_ids.index(client_id)
        for step in range(1, share_queues + 1):
            own.update(allocate(client_ids[(index + step) % len(client_ids)], queues, client_ids))
    return own
