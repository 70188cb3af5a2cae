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
    """The indexes of light queues by name. The journal has the names of each record that is in some."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._queues: dict[str, ConsumeQueue] = {}
        self._names = {int(at): value.split(SEPARATOR) for at, value in journal.items(Kind.LIGHT)}
        for name, min_offset in journal.items(Kind.LIGHT_QUEUE):
            self._queues[name] = ConsumeQueue(int(min_offset))

    def queue(self, name: str) -> ConsumeQueue | None:
        """The index of a light queue; None if no message was ever entered into it."""
        return self._queues.get(name)

    def below(self, parent_topic: str) -> list[str]:
        """The names of the queues of lite topics below a topic."""
        return [name for name in self._queues if parent_of(name) == parent_topic]

    def offsets(self, message: StoredMessage) -> dict[str, int | None]:
        """What a message names as light queues, and the offset that it gets in each; None in what is none.

        A copy for a retry or for later is in none of them, though it has the property.
        """
        names = message.properties.get(INNER_MULTI_DISPATCH)
        if not names or message.topic == SCHEDULE_TOPIC or message.topic.startswith((RETRY_PREFIX, _SYSTEM_PREFIX)):
            return {}
        return {name: self._queue(name).max_offset if is_light_queue(name) else None for name in names.split(SEPARATOR)}

    def put(self, names: Collection[str], entry: QueueEntry) -> None:
        """Enter a record that was just stored."""
        self._names[entry.commit_log_offset] = list(names)
        self._journal.put(Kind.LIGHT, str(entry.commit_log_offset), SEPARATOR.join(names))
        self._append(names, entry)

    def recover(self, entry: QueueEntry) -> None:
        """Enter a record that was stored before this start, if it is in any light queue."""
        self._append(self._names.get(entry.commit_log_offset, ()), entry)

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Forget records that are deleted, and those that lie in front of one in a light queue."""
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
        """Forget a light queue. Its records stay where they are stored."""
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
