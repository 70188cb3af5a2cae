"""A queue's stored offset while others may still move it: in the first seconds of an ownership, and after a cut.

A broker tells of an operator's reset in its answer to the group's next pull of the queue, and forgets the reset with
that answer. For up to 20 s that pull may be an old one, whose connection has ended or whose member has given the queue
up. Then nobody hears of the reset, and the new owner's next commit would undo it. So in that time each commit is
preceded by a request for the stored offset, and what is found is judged:

- It is one of our own commits, or none: commit.
- It is below all that was known at the take-over (`floor`): only an operator stores such an offset. Nothing is
  committed. If it is still there after `SURE_SECONDS`, in which our own pull would have brought the reset, the queue
  goes there as if the pull had told of it.
- It is above what is known (`highest`): a former owner has committed, either because its last commit was slow, or
  because it is a client that nobody waits for. What both have finished counts as handled twice. Commit if our offset is
  higher.

Where the connection to the broker was lost, or this process was suspended, the others may have taken this member for
dead and its queue over, before it hears of it. So its first commit after that is preceded by a look, too. Over another
connection nothing lower is taken for a reset: the broker may have been restarted, and have lost what it had not written
to disk.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from rmqd.client.remoting.connection import RemotingConnection
from rmqd.clock import Clock
from rmqd.consumer.services import OffsetWatcher
from rmqd.errors import RmqdError

WATCH_SECONDS: Final = 25.0  # a pull is held for 15 s, and up to 5 s longer; then one more look
SHARE: Final = 5.0  # looks ahead of pulls take one part of so many of the time
SURE_SECONDS: Final = 4.0  # in which the pull of the present owner brings a reset that still waits for it


@dataclass(slots=True)
class OffsetWatch:
    """What one ownership knows of a queue's stored offset, beside its own commits. Times are monotonic."""

    watcher: OffsetWatcher
    until: float
    on: RemotingConnection | None  # that of the last look that allowed a commit, or of the take-over
    floor: int  # only an operator puts the offset below; 0 where nothing is known
    highest: int  # what was committed here, or by others as far as it is known
    lower: int | None = None  # a stored offset that may be an operator's reset
    lower_since: float = 0.0
    is_reset: bool = False  # a commit was not taken, as a reset waits for the next pull
    is_doubtful: bool = False  # this member may not be the owner any more
    next_for_pull: float = float("-inf")  # no pull waits for a look before

    def is_over(self, now: float) -> bool:
        """Whether a commit needs no look before it."""
        return now >= self.until and self.lower is None and not self.is_reset and not self.is_doubtful

    async def allows_pull(self, clock: Clock, look: Callable[[], Awaitable[bool]]) -> bool:
        """Look ahead of a pull that is to carry a commit, unless that would make the queue's pulls much slower.

        A look that fails does not keep the pull from being sent.
        """
        if (began := clock.monotonic()) < self.next_for_pull:
            return False
        try:
            return await look()
        except RmqdError:
            return False
        finally:
            now = clock.monotonic()
            self.next_for_pull = now + SHARE * (now - began)

    def lose_connection(self) -> None:
        """Look once more, but take nothing lower for a reset any more; forget what the lost connection told."""
        self._forget()
        self.is_doubtful = True

    def reset(self, offset: int) -> None:
        """End the look: an operator has moved the queue, which is known here."""
        self._forget()
        self.is_doubtful, self.highest = False, offset

    def may_commit(self, stored: int | None, offset: int, ours: frozenset[int], now: float) -> bool:
        """Judge the stored offset ahead of a commit. Returns whether to commit; `ours` are this owner's commits."""
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

    def _forget(self) -> None:
        self.until, self.floor, self.lower, self.is_reset = float("-inf"), 0, None, False

    def _lower(self, stored: int, now: float) -> None:
        if stored != self.lower:
            self.lower, self.lower_since = stored, now
        elif now - self.lower_since >= SURE_SECONDS:
            self.lower_since = float("inf")  # told once
            self.watcher.set_back(stored)
