"""Decides when to accept a broker's report that its queue ends below the committed offset: only after several seconds.

After a failover the report may come from a replica that lags, or that was the master until a moment ago. If the queue
went back at once, its messages would be read twice as soon as the replica has caught up.
"""

from __future__ import annotations

from typing import Final

import structlog

from rmqd.clock import Clock
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)

DOUBT_SECONDS: Final = 5.0  # longer than it takes to receive a new route


class OffsetDoubt:
    """Measures for how long a broker's master has reported one queue's end below the committed offset."""

    def __init__(self, queue: MessageQueue, clock: Clock) -> None:
        self._queue = queue
        self._clock = clock
        self._said: tuple[str, float] | None = None  # the address, and since when (monotonic)
        self.lowest: int | None = None  # lowest offset offered since then: the queue may have grown meanwhile

    def is_over(self, address: str, committed: int, offered: int) -> bool:
        """Return whether to accept the offer. Called for each response that offers less than the committed offset."""
        now = self._clock.monotonic()
        if self._said is None or self._said[0] != address:
            self._said, self.lowest = (address, now), offered
            log.warning(
                "offset.doubted", queue=str(self._queue), address=address, committed=committed, broker_offers=offered
            )
        self.lowest = offered if self.lowest is None else min(self.lowest, offered)
        return now - self._said[1] >= DOUBT_SECONDS

    def end(self) -> None:
        """Forget the reports: the broker has the queue's offset after all, or its report was accepted."""
        self._said = self.lowest = None
