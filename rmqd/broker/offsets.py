"""The offsets of groups (`ConsumerOffsetManager.java`): committed, pulled, and reset by an operator."""

from __future__ import annotations

from collections import defaultdict

from rmqd.broker.journal import Journal, Kind
from rmqd.broker.settings import BrokerSettings

_SEPARATOR = "@"  # names of topics and groups never contain it

_Table = dict[tuple[str, str], dict[int, int]]


class ConsumerOffsetManager:
    """Offsets by group, topic and queue id. `settings` is read on each use, because it may change at runtime."""

    def __init__(self, settings: BrokerSettings, journal: Journal) -> None:
        self.settings = settings
        self._journal = journal
        self._committed: _Table = defaultdict(dict)
        self._pulled: _Table = defaultdict(dict)
        self._resets: _Table = defaultdict(dict)
        for table, kind in ((self._committed, Kind.OFFSET), (self._resets, Kind.RESET)):
            for key, value in journal.items(kind):
                topic, group, queue_id = key.split(_SEPARATOR)
                table[group, topic][int(queue_id)] = int(value)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the group's offset in a queue: a reset that no pull response has reported, else the committed one."""
        reset = self.pending_reset(group, topic, queue_id)
        if reset is not None:
            return reset
        queues = self._committed.get((group, topic))
        offset = -1 if queues is None else queues.get(queue_id, -1)
        return offset if offset >= 0 else None  # a group may commit less than 0, which stands for no offset

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset. It may be lower than the previous one."""
        self._committed[group, topic][queue_id] = offset
        self._journal.put(Kind.OFFSET, _key(group, topic, queue_id), str(offset))

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets of a topic by queue id."""
        return dict(self._committed.get((group, topic), {}))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has committed."""
        return [topic for one, topic in self._committed if one == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have committed in the topic."""
        return [group for group, one in self._committed if one == topic]

    def committed_table(self) -> dict[str, dict[int, int]]:
        """Return all committed offsets by `topic@group`, as in the response to GET_ALL_CONSUMER_OFFSET (43)."""
        return _by_name(self._committed)

    def pulled_table(self) -> dict[str, dict[int, int]]:
        """Return the pulled offsets of all groups, by `topic@group`."""
        return _by_name(self._pulled)

    def note_pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note that a group pulled up to an offset."""
        self._pulled[group, topic][queue_id] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that the group has pulled up to since the broker's start."""
        return self._pulled.get((group, topic), {}).get(queue_id)

    def clone(self, group: str, to_group: str, topic: str) -> None:
        """Replace a group's offsets in a topic by the offsets of another group."""
        queues = self.queues(group, topic)
        if not queues:
            return
        self._forget(self._committed, Kind.OFFSET, (to_group, topic))
        for queue_id, offset in queues.items():
            self.commit(to_group, topic, queue_id, offset)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset a group's offset, as an operator requests. It is valid at once. The next pull response reports it."""
        self._resets[group, topic][queue_id] = offset
        self._journal.put(Kind.RESET, _key(group, topic, queue_id), str(offset))
        self.commit(group, topic, queue_id, offset)

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the unreported reset; None while resets are pushed to members (useServerSideResetOffset=false)."""
        queues = self._resets.get((group, topic))
        return None if queues is None or not self.settings.useServerSideResetOffset else queues.get(queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the unreported reset, and delete it."""
        offset = self.pending_reset(group, topic, queue_id)
        if offset is not None:
            del self._resets[group, topic][queue_id]
            self._journal.delete(Kind.RESET, _key(group, topic, queue_id))
        return offset

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Delete all offsets of a group, of a topic, or of a group in a topic."""
        for table, kind in ((self._committed, Kind.OFFSET), (self._pulled, None), (self._resets, Kind.RESET)):
            for one in [key for key in table if group in (None, key[0]) and topic in (None, key[1])]:
                self._forget(table, kind, one)

    def _forget(self, table: _Table, kind: Kind | None, key: tuple[str, str]) -> None:
        for queue_id in table.pop(key, {}):
            if kind is not None:
                self._journal.delete(kind, _key(*key, queue_id))


def _key(group: str, topic: str, queue_id: int) -> str:
    return f"{_name(group, topic)}{_SEPARATOR}{queue_id}"


def _name(group: str, topic: str) -> str:
    return f"{topic}{_SEPARATOR}{group}"


def _by_name(table: _Table) -> dict[str, dict[int, int]]:
    return {_name(group, topic): dict(queues) for (group, topic), queues in table.items()}
