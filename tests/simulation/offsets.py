"""The group's offsets, as brokers and slaves store them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rmqd.broker.store.journal import JournalKind
from tests.simulation.names import GROUP, TOPIC

if TYPE_CHECKING:
    from tests.simulation.cluster import Broker
    from tests.simulation.judging.commits import Commits
    from tests.simulation.judging.forgotten import Forgotten
    from tests.simulation.judging.wrong import Wrong
    from tests.simulation.slave import Slave
    from tests.simulation.timeline import Timeline


class Fall(NamedTuple):
    """A commit below the stored offset. `at` and `since` are in seconds since the beginning."""

    at: float
    since: float
    """When the former offset was stored."""
    broker: str
    queue: int
    former: int
    offset: int


class StoredOffsets:
    """Records each offset, and checks it."""

    def __init__(self, timeline: Timeline, masters: Commits, slaves: Commits, forgotten: Forgotten) -> None:
        self.falls: list[Fall] = []
        self._timeline = timeline
        self._masters = masters
        self._slaves = slaves
        self._since: dict[tuple[str, int], float] = {}
        self._forgotten = forgotten

    @property
    def wrong(self) -> list[Wrong]:
        """The faults of single commits."""
        return [*self._masters.wrong, *self._slaves.wrong]

    def at_master(self, broker: Broker, key: str, offset: int) -> None:
        """Called before a broker replaces the offset under a key `topic@group@queue`."""
        topic, group, number = key.split("@")
        if (topic, group) == (TOPIC, GROUP):
            former, queue = int(broker.disk.value(JournalKind.OFFSET, key) or 0), int(number)
            at, since = self._timeline.now(), self._since.get((broker.name, queue), 0.0)
            self._forgotten.stored(broker, queue, offset, at)
            if offset < former:
                self.falls.append(Fall(at, since, broker.name, queue, former, offset))
            if offset != former:
                self._since[broker.name, queue] = at
            if self._masters.stored(broker.name, queue, offset, at):
                self._timeline.note(broker.name, f"has offset {offset} of queue {queue}")

    def at_slave(self, broker: Broker, slave: Slave, key: str, offset: int) -> None:
        """Called when a slave stores an offset of a member or of its master."""
        topic, group, queue = key.split("@")
        is_ours, at = (topic, group) == (TOPIC, GROUP), self._timeline.now()
        if is_ours and self._slaves.stored(broker.name, int(queue), offset, at):
            self._timeline.note(slave.name, f"has offset {offset} of queue {queue}")
