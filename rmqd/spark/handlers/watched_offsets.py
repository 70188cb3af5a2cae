"""Commits of a group on Spark that never overwrite another member's or operator's offset; the driver handles those."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rmqd.spark.cluster import Cluster
from rmqd.spark.source.group_offsets import GroupOffsets
from rmqd.wire.message_queue import MessageQueue


class WatchedOffsets(GroupOffsets):
    """Commits in queues whose stored offset is between the last commit and the query's offset.

    In any other queue an operator has moved the group, or a killed broker forgot the last commits. The driver detects
    that within seconds (`generations`), and decides; a commit before that would hide it.
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
        return False  # the driver itself is the group's only member

    def _show(self, cluster: Cluster, queues: Collection[MessageQueue]) -> None:
        """Do nothing: after the driver's heartbeats, brokers create the retry topic."""
