"""Light message queues: queues such as `%LMQ%room-7`, over records that are stored in other topics (`LmqDispatch`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

from rmqd.broker.journal import Journal, Kind
from rmqd.broker.store.consume_queue import ConsumeQueue, QueueEntry
from rmqd.wire.lite import parent_of
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.messages.light_queue import SEPARATOR
from rmqd.wire.messages.properties import INNER_MULTI_DISPATCH
from rmqd.wire.topics import RETRY_PREFIX, SCHEDULE_TOPIC, is_light_queue

_SYSTEM_PREFIX: Final = "rmq_sys_"


class LightQueues:
    """The indexes of light queues by name. The journal has the queue names of each record in light queues."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._queues: dict[str, ConsumeQueue] = {}
        self._names = {int(at): value.split(SEPARATOR) for at, value in journal.items(Kind.LIGHT)}
        for name, min_offset in journal.items(Kind.LIGHT_QUEUE):
            self._queues[name] = ConsumeQueue(int(min_offset))

    def queue(self, name: str) -> ConsumeQueue | None:
        """Return the index of a light queue; None if it never had a message."""
        return self._queues.get(name)

    def below(self, parent_topic: str) -> list[str]:
        """Return the names of the lite topic queues of a parent topic."""
        return [name for name in self._queues if parent_of(name) == parent_topic]

    def offsets(self, message: StoredMessage) -> dict[str, int | None]:
        """Return the queues that a message names with its offsets there; None for names of other queues."""
        names = message.properties.get(INNER_MULTI_DISPATCH)
        if not names or message.topic == SCHEDULE_TOPIC or message.topic.startswith((RETRY_PREFIX, _SYSTEM_PREFIX)):
            return {}
        return {name: self._queue(name).max_offset if is_light_queue(name) else None for name in names.split(SEPARATOR)}

    def put(self, names: Collection[str], entry: QueueEntry) -> None:
        """Add a record that was just stored to light queues."""
        self._names[entry.commit_log_offset] = list(names)
        self._journal.put(Kind.LIGHT, str(entry.commit_log_offset), SEPARATOR.join(names))
        self._append(names, entry)

    def recover(self, entry: QueueEntry) -> None:
        """Add a record that was stored before this start to its light queues, if any."""
        self._append(self._names.get(entry.commit_log_offset, ()), entry)

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Remove deleted records, and records before them in a light queue."""
        gone: defaultdict[str, set[int]] = defaultdict(set)
        for at in commit_log_offsets if self._names else ():
            for name in self._names.get(at, ()):
                gone[name].add(at)
        for name, records in gone.items():
            queue = self._queues[name]
            while records and (first := queue.entry(queue.min_offset)) is not None:
                records.discard(first.commit_log_offset)
                self._take_out(name, first.commit_log_offset)
                queue.discard(1)
            self._journal.put(Kind.LIGHT_QUEUE, name, str(queue.min_offset))

    def delete(self, name: str) -> None:
        """Remove a light queue. Its records stay in their topics."""
        if self._queues.pop(name, None) is not None:
            self._journal.delete(Kind.LIGHT_QUEUE, name)
            for at in [at for at, names in self._names.items() if name in names]:
                self._take_out(name, at)

    def _take_out(self, name: str, at: int) -> None:
        names = self._names[at]
        names.remove(name)
        if names:
            self._journal.put(Kind.LIGHT, str(at), SEPARATOR.join(names))
        else:
            del self._names[at]
            self._journal.delete(Kind.LIGHT, str(at))

    def _queue(self, name: str) -> ConsumeQueue:
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = ConsumeQueue()
        return queue

    def _append(self, names: Iterable[str], entry: QueueEntry) -> None:
        for name in names:
            self._queue(name).append(*entry)
