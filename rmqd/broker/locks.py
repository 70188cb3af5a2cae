"""Who may consume a queue of an orderly group (`RebalanceLockManager.java`). In memory only, as there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from rmqd.wire.message_queue import MessageQueue

LOCK_SECONDS: Final = 60.0  # Java: rocketmq.broker.rebalance.lockMaxLiveTime


class RebalanceLockManager:
    """Locks by group and queue: an owner's client id, and until when. `now` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._locks: dict[str, dict[MessageQueue, tuple[str, float]]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Take or renew what is free, expired or the client's own; returns what the client has now."""
        held, now = self._locks.setdefault(group, {}), self._now()
        got = set()
        for queue in queues:
            owner, until = held.get(queue, ("", 0.0))
            if owner in ("", client_id) or until < now:
                held[queue] = (client_id, now + LOCK_SECONDS)
                got.add(queue)
        return frozenset(got)

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Give up what the client owns."""
        held = self._locks.get(group, {})
        for queue in queues:
            if held.get(queue, ("", 0.0))[0] == client_id:
                del held[queue]

    def has_any(self, group: str) -> bool:
        """Whether a member of the group holds a lock that has not expired."""
        now = self._now()
        return any(until >= now for _, until in self._locks.get(group, {}).values())
