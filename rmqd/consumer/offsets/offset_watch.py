"""A queue's stored offset in the first seconds of an ownership, when others may still move it.

An operator's reset is told in the answer to the group's next pull of the queue, and forgotten by the broker with that
answer. For up to 20 s that pull may be one whose connection has ended, or whose member has given the queue up: then
nobody hears of the reset, and the next commit would undo it. So each commit of that time is preceded by a look at what
is stored. A former owner may also commit in it: one whose last commit is slow, or of a client that nobody waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.consumer.services import OffsetWatcher

WATCH_SECONDS: Final = 25.0  # a pull is held for 15 s, and up to 5 s longer; then one more look
SURE_SECONDS: Final = 4.0  # in which the pull of the present owner brings a reset that still waits for it


@dataclass(slots=True)
class OffsetWatch:
    """What one ownership knows of a queue's stored offset, beside its own commits. Times are monotonic."""

    watcher: OffsetWatcher
    until: float
    on: RemotingConnection | None  # another one may be to a broker that has lost what it had not flushed
    floor: int  # only an operator puts the offset below
    highest: int  # what was committed here, or by others as far as it is known
    lower: int | None = None  # a stored offset that may be an operator's
    lower_since: float = 0.0
    is_reset: bool = False  # a commit was not taken, as a reset waits for the next pull

    def may_commit(self, stored: int | None, offset: int, ours: frozenset[int], now: float) -> bool:
        """Judge what is stored ahead of a commit; whether that is to be sent. `ours` are commits of this owner."""
        if stored is None:
            return True
        if stored in ours:
            self.lower = None
            return True
        if stored < self.floor or self.is_reset:
            self._lower(stored, now)
            return False
        self.lower = None
        if stored > self.highest:
            self.watcher.overlapped(stored - self.highest)
            self.highest = stored
        return offset > stored

    def _lower(self, stored: int, now: float) -> None:
        if stored != self.lower:
            self.lower, self.lower_since = stored, now
        elif now - self.lower_since >= SURE_SECONDS:
            self.lower_since = float("inf")  # told once
            self.watcher.set_back(stored)
