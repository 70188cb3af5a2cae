"""Converts names with a namespace to names without it, and back.

Inside a consumer all names include the namespace (`rmqd.plugins.consumer_options` adds it). This module removes it from
snapshots; `process.logs` does so in the log, and `wire.messages` for handlers.
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
    """The cluster of a group, and the namespace of its names there."""

    cluster: str = DEFAULT_CLUSTER
    namespace: str = ""

    def to_user_names(self, group: GroupSnapshot) -> GroupSnapshot:
        """Return a consumer's snapshot without the namespace, and with the name of its cluster."""
        return replace(without_namespace(group, self.namespace), cluster=self.cluster)

    def to_broker_names(self, scope: PauseScope) -> PauseScope:
        """Return the scope of an operator's pause in the consumer's names."""
        return scope if scope.topic is None else replace(scope, topic=wrap_namespace(scope.topic, self.namespace))
