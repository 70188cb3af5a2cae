"""A group's offsets where its driver looks after them, too: what somebody else has set is left as it is."""

from __future__ import annotations

from collections.abc import Mapping

from rmqd.spark.cluster import Cluster
from rmqd.spark.source.group_offsets import GroupOffsets
from rmqd.wire.message_queue import MessageQueue


class WatchedOffsets(GroupOffsets):
    """Commits in queues whose offset is as it was committed last, or has gone on since no further than the query.

    Elsewhere an operator has moved the group, or a broker was killed and has forgotten the last commits. The driver
    sees that within seconds (`generations`), and decides: a commit before would hide it.
    """

    def _due(
        self, cluster: Cluster, found: Mapping[MessageQueue, int | None], changed: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        return {
            queue: changed[queue]
            for queue, at in found.items()
            if at is None or self._stored.get(queue, at) <= at <= changed[queue]
        }

    def _is_in_use(self, queues: Mapping[MessageQueue, int]) -> bool:
        return False  # the driver itself is the group's member, and sees that it is the only one
