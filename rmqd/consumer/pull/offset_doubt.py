"""Whether a broker may say that its queue ends before what was committed: only when it says so for a while.

After a failover that is said by a replica that has not got as far yet, or that was a master a moment ago. A queue that
went back at once would be read twice as soon as the rest is there.
"""

from __future__ import annotations

from typing import Final

import structlog

from rmqd.clock import Clock
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

DOUBT_SECONDS: Final = 5.0  # longer than it takes to learn another route


class OffsetDoubt:
    """Remembers for how long a broker's master has said that one queue ends below what was committed."""

    def __init__(self, queue: MessageQueue, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._said: tuple[str, float] | None = None  # by whom, and since when (monotonic)
        self.lowest: int | None = None  # that was offered since then: the queue may have grown meanwhile

    def is_over(self, address: str, committed: int, offered: int) -> bool:
        """Whether to believe it; each call is one answer of a broker that offers less than what was committed."""
        now = self._clock.monotonic()
        if self._said is None or self._said[0] != address:
            self._said, self.lowest = (address, now), offered
            log.warning(
                "offset.doubted", queue=str(self._queue), address=address, committed=committed, broker_offers=offered
            )
        self.lowest = offered if self.lowest is None else min(self.lowest, offered)
        return now - self._said[1] >= DOUBT_SECONDS

    def end(self) -> None:
        """Forget what was said: the broker has the queue's offset after all, or was believed."""
        self._said = self.lowest = None
