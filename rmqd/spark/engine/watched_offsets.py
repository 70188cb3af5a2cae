"""A group's offsets where its driver looks after them, too: what somebody else has set is left as it is."""

from __future__ import annotations

from collections.abc import Mapping

from rmqd.spark.cluster import cluster_of, everyone
from rmqd.spark.source.group_offsets import GroupOffsets
from rmqd.wire.message import MessageQueue


class WatchedOffsets(GroupOffsets):
    """Commits in queues whose offset is as it was committed last, or has gone on since no further than the query.

    Elsewhere an operator has moved the group, or a broker was killed and has forgotten the last commits. The driver
    sees that within seconds (`generations`), and decides: a commit before would hide it.
    """

    def _commit(self, positions: Mapping[MessageQueue, int]) -> None:
        last = self._committed or {}
        changed = {queue for queue, offset in positions.items() if last.get(queue, offset) != offset}
        stored = everyone(cluster_of(self._options.access).committed(self._options.group, changed))
        moved = {
            queue
            for queue, offset in stored.items()
            if offset is not None and not last[queue] <= offset <= positions[queue]
        }
        super()._commit({queue: offset for queue, offset in positions.items() if queue not in moved})
