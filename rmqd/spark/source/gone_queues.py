"""Queues of a query's checkpoint that it no longer reads: their broker or topic is gone, or they are not subscribed to.

They keep their offsets for a retention time, so that a broker that comes back is read on from there. Then they are
dropped.
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
    """Since when queues are gone (milliseconds since 1970). The end of a batch has it too, for the query's next run."""

    def __init__(self, retention_seconds: float) -> None:
        self._retention_ms = retention_seconds * 1000
        self._since: dict[MessageQueue, int] = {}
        self._ends: dict[MessageQueue, int] = {}
        self._retired = 0

    def look(self, begin: Offsets, there: Set[MessageQueue], heads: Mapping[MessageQueue, int]) -> None:
        """Note which of the queues in `begin` are not `there`, and tell of each once."""
        self._ends |= heads
        for queue in sorted(begin.positions.keys() - there - self._since.keys()):
            self._since[queue] = begin.gone.get(queue) or int(time.time() * 1000)
            log.warning(
                "spark.queue_gone", queue=str(queue), position=begin.positions[queue], unread=self._unread(begin, queue)
            )
        for queue in self._since.keys() & there:
            del self._since[queue]

    def noted_in(self, end: Offsets) -> Offsets:
        """The end of a batch, with the queues that are gone, and without those that have been gone for too long."""
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
        """How many messages it had behind its place when it was last there; None where this run never saw it."""
        end = self._ends.get(queue)
        return None if end is None else max(0, end - offsets.positions[queue])
