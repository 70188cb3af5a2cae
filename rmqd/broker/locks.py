"""Locks of queues for the members of orderly groups (`RebalanceLockManager.java`). In memory only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rmqd.wire.message_queue import MessageQueue

LOCK_SECONDS: Final = 60.0  # Java: rocketmq.broker.rebalance.lockMaxLiveTime


class RebalanceLockManager:
    """The locks of queues by group: the owner's client id, and the end of the lock. `now` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._locks: dict[str, dict[MessageQueue, tuple[str, float]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Lock queues that are free, expired, or owned by the client. Returns the queues that it owns."""
        held, now = self._locks.setdefault(group, {}), self._now()
        got = set()
        for queue in queues:
            owner, until = held.get(queue, ("", 0.0))
            if owner in ("", client_id) or until < now:
                held[queue] = (client_id, now + LOCK_SECONDS)
                got.add(queue)
        return frozenset(got)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Unlock the queues that the client owns."""
        held = self._locks.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0.0))[0] == client_id:
                del held[queue]

    def has_any(self, group: str) -> bool:
        """Return whether a member of the group holds a lock that has not expired."""
        now = self._now()
        return any(until >= now for _, until in self._locks.get(group, {}).values())
