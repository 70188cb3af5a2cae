"""Where names change hands: brokers know those of a namespace, people and handlers know them without it.

Inside a consumer every name is as brokers know it (`rmqd.plugins.consumer_options`). Here they are turned back for
snapshots, as `logs` does for the log and `wire.message` for handlers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from rmqd.config.model.cluster import DEFAULT_CLUSTER
from rmqd.consumer.pauses import PauseScope
from rmqd.consumer.stats.snapshot import GroupSnapshot
from rmqd.wire.namespace import without_namespace
from rmqd.wire.topics import wrap_namespace


@dataclass(frozen=True, slots=True)
class GroupEdge:
    """The cluster that a group is on, and the namespace of its names there."""

    cluster: str = DEFAULT_CLUSTER
    namespace: str = ""

    def shown(self, group: GroupSnapshot) -> GroupSnapshot:
        """A consumer's snapshot as the rest of the daemon sees it."""
        return replace(without_namespace(group, self.namespace), cluster=self.cluster)

    def meant(self, scope: PauseScope) -> PauseScope:
        """An operator's scope as the consumer knows it."""
        return scope if scope.topic is None else replace(scope, topic=wrap_namespace(scope.topic, self.namespace))
