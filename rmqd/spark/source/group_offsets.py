"""A consumer group's offsets on the brokers, kept where the query's checkpoint is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from rmqd.errors import RmqdError
from rmqd.spark.cluster import cluster_of, everyone
from rmqd.wire.message import MessageQueue

if TYPE_CHECKING:
    from rmqd.spark.source.options import SourceOptions

log = structlog.get_logger(__name__)


class GroupOffsets:
    """Commits what a query has done. Without a group, or with commitOffsets=false, it does nothing."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._committed: dict[MessageQueue, int] | None = None
        self._failing = False

    def pin(self, starts: Mapping[MessageQueue, int]) -> None:
        """Commit where the query starts, in queues for which the group has no offset. Raises RmqdError."""
        if not self._options.commit_offsets:
            return
        cluster = cluster_of(self._options.access)
        known = everyone(cluster.committed(self._options.group, starts))
        missing = {queue: offset for queue, offset in starts.items() if known[queue] is None}
        everyone(cluster.commit(self._options.group, missing))

    def commit(self, positions: Mapping[MessageQueue, int]) -> None:
        """Commit what is new in `positions`. Raises nothing: what was not taken is committed the next time."""
        if not self._options.commit_offsets:
            return
        try:
            self._commit(positions)
            self._failing = False
        except RmqdError as error:
            if not self._failing:
                log.warning("spark.not_committed", group=self._options.group, error=str(error))
            self._failing = True

    def _commit(self, positions: Mapping[MessageQueue, int]) -> None:
        cluster, group = cluster_of(self._options.access), self._options.group
        if self._committed is None:
            known = everyone(cluster.committed(group, positions))
            ahead = {str(queue): offset for queue, offset in known.items() if (offset or 0) > positions[queue]}
            if ahead:
                log.warning("spark.group_is_ahead", group=group, committed=ahead, follows="the checkpoint")
            self._committed = {queue: offset for queue, offset in known.items() if offset is not None}
        changed = {queue: offset for queue, offset in positions.items() if self._committed.get(queue) != offset}
        if not changed:
            return
        answers = cluster.commit(group, changed)
        self._committed |= {queue: changed[queue] for queue in answers.found}
        everyone(answers)
