"""Where groups are in their queues (`ConsumerOffsetManager.java`): committed, pulled, and reset by an operator."""

from __future__ import annotations

from collections import defaultdict

from rmqd.broker.journal import Journal, Kind

_SEPARATOR = "@"  # names of topics and groups never contain it


class ConsumerOffsetManager:
    """Offsets by group, topic and queue id."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._committed: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        self._pulled: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        self._resets: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
        for table, kind in ((self._committed, Kind.OFFSET), (self._resets, Kind.RESET)):
            for key, value in journal.items(kind):
                topic, group, queue_id = key.split(_SEPARATOR)
                table[group, topic][int(queue_id)] = int(value)

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset."""
        queues = self._committed.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Keep an offset, also one below the former."""
        self._committed[group, topic][queue_id] = offset
        self._journal.put(Kind.OFFSET, _key(group, topic, queue_id), str(offset))

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """The committed offsets of a topic by queue id."""
        return dict(self._committed.get((group, topic), {}))

    def topics_of(self, group: str) -> list[str]:
        """Topics in which the group has committed."""
        return [topic for one, topic in self._committed if one == group]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have committed in the topic."""
        return [group for group, one in self._committed if one == topic]

    def table(self) -> dict[str, dict[int, int]]:
        """All committed offsets by `topic@group`, as request 43 tells them."""
        return {f"{topic}{_SEPARATOR}{group}": dict(queues) for (group, topic), queues in self._committed.items()}

    def note_pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group pulled up to this offset."""
        self._pulled[group, topic][queue_id] = offset

    def pulled(self, group: str, topic: str, queue_id: int) -> int | None:
        """How far the group pulled, since the broker's start."""
        return self._pulled.get((group, topic), {}).get(queue_id)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """An operator's reset, which the next pull of the queue is told."""
        self._resets[group, topic][queue_id] = offset
        self._journal.put(Kind.RESET, _key(group, topic, queue_id), str(offset))

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The reset that no pull was told yet."""
        queues = self._resets.get((group, topic))
        return None if queues is None else queues.get(queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The same, which is told now, and forgotten."""
        queues = self._resets.get((group, topic))
        offset = None if queues is None else queues.pop(queue_id, None)
        if offset is not None:
            self._journal.delete(Kind.RESET, _key(group, topic, queue_id))
        return offset

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Forget all offsets of a group, of a topic, or of a group in a topic."""
        for table, kind in ((self._committed, Kind.OFFSET), (self._pulled, None), (self._resets, Kind.RESET)):
            for one in [key for key in table if group in (None, key[0]) and topic in (None, key[1])]:
                queues = table.pop(one)
                if kind is not None:
                    for queue_id in queues:
                        self._journal.delete(kind, _key(*one, queue_id))


def _key(group: str, topic: str, queue_id: int) -> str:
    return f"{topic}{_SEPARATOR}{group}{_SEPARATOR}{queue_id}"
