"""Queues in a query's checkpoint that it no longer reads: their broker or topic disappeared, or they are unsubscribed.

Their offsets are kept for a retention time, so that reading continues there if a broker returns. Then they are removed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set
from dataclasses import replace

import structlog

from rmqd.spark.source.offsets import Offsets
from rmqd.wire.message_queue import MessageQueue

log = structlog.get_logger(__name__)


class GoneQueues:
    """When queues disappeared (milliseconds since 1970). Also stored in the end of a batch, for the next run."""

    def __init__(self, retention_seconds: float) -> None:
        self._retention_ms = retention_seconds * 1000
        self._since: dict[MessageQueue, int] = {}
        self._ends: dict[MessageQueue, int] = {}
        self._retired = 0

    def look(self, begin: Offsets, there: Set[MessageQueue], heads: Mapping[MessageQueue, int]) -> None:
        """Record the queues of `begin` that are not in `there`. Each is logged once."""
        self._ends |= heads
        for queue in sorted(begin.positions.keys() - there - self._since.keys()):
            self._since[queue] = begin.gone.get(queue) or int(time.time() * 1000)
            log.warning(
                "spark.queue_gone", queue=str(queue), position=begin.positions[queue], unread=self._unread(begin, queue)
            )
        for queue in self._since.keys() & there:
            del self._since[queue]

    def noted_in(self, end: Offsets) -> Offsets:
        """Add the missing queues to the end of a batch, and remove queues whose retention time is over."""
        oldest = time.time() * 1000 - self._retention_ms
        late = {queue for queue, since in self._since.items() if since <= oldest}
        for queue in sorted(late & end.positions.keys()):
            self._retired += 1
            log.warning(
                "spark.queue_retired",
                queue=str(queue),
                position=end.positions[queue],
                unread=self._unread(end, queue),
                retired=self._retired,
            )
        return replace(
            end,
            positions={queue: offset for queue, offset in end.positions.items() if queue not in late},
            gone={queue: since for queue, since in self._since.items() if queue not in late},
        )

    def _unread(self, offsets: Offsets, queue: MessageQueue) -> int | None:
        """Return the number of unread messages when the queue was last seen; None if this run never saw it."""
        end = self._ends.get(queue)
        return None if end is None else max(0, end - offsets.positions[queue])
