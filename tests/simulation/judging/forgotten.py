"""A group that starts as a new one and skips messages, because its only broker has forgotten that it existed.

docs/high-availability.md, "What is promised".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rmqd.broker.store.journal import JournalKind
from rmqd.wire.topics import retry_topic
from tests.simulation.judging.passed import Passed
from tests.simulation.names import GROUP, TOPIC

if TYPE_CHECKING:
    from tests.simulation.cluster import Broker
    from tests.simulation.name_servers import NameServer
    from tests.simulation.plan import Plan

_MARK: Final = f"{retry_topic(GROUP)}@{GROUP}@0"


class Forgotten:
    """Reports the first offset of a queue whose broker has forgotten the group.

    Another broker that remembers the group keeps members from starting as a new group, also if its master is down and
    its slave does not know the group. The exception is a name server without routes to both.
    """

    def __init__(
        self, plan: Plan, brokers: Sequence[Broker], name_servers: Sequence[NameServer], passed: Passed
    ) -> None:
        self._begins_at_the_end = plan.consume_from_where == "last_offset"
        self._brokers = brokers
        self._name_servers = name_servers
        self._passed = passed
        self._begun: set[tuple[str, int]] = set()

    def stored(self, broker: Broker, queue: int, offset: int, at: float) -> None:
        """Called before a broker stores an offset of a queue."""
        is_known = (broker.name, queue) in self._begun
        self._begun.add((broker.name, queue))
        if not self._begins_at_the_end or not is_known:
            return
        if not _has(broker, f"{TOPIC}@{GROUP}@{queue}") and not _has(broker, _MARK):
            others = [other.name for other in self._brokers if other is not broker and _has(other, _MARK)]
            if not others or any(one.is_up and not one.names(others) for one in self._name_servers):
                self._passed.begin_anew(broker.name, queue, offset, at)


def _has(broker: Broker, key: str) -> bool:
    return broker.disk.value(JournalKind.OFFSET, key) is not None
