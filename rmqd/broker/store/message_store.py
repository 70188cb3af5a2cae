"""MessageStore: stores messages, finds them by queue and by commit log offset, and deletes the oldest.

Java: `DefaultMessageStore`, `CleanCommitLogService`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import Final, NamedTuple

import structlog

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.filter.message_filter import MessageFilter
from rmqd.broker.store import queue_store
from rmqd.broker.store.journal import SEPARATOR, Journal, JournalKind, RecordLog, RecordRow, key_of
from rmqd.errors import InvalidMessageError, ProtocolError, StorageError
from rmqd.runtime.clock import Clock
from rmqd.wire.bodies.heartbeat_data import java_hash
from rmqd.wire.messages.decode import LIGHT_QUEUE_SEPARATOR
from rmqd.wire.messages.encode import StoredMessage, encode_record
from rmqd.wire.messages.message_id import parse_host
from rmqd.wire.messages.properties import INNER_BASE, INNER_MULTI_QUEUE_OFFSET, TAGS
from rmqd.wire.topics import LIGHT_QUEUE_ID, is_light_queue

QueueKey = tuple[str, int]

NeededFrom = Callable[[str, int], int | None]
"""Returns, for a topic and queue id, the first offset whose message must be kept; None if all may be deleted."""


def deletable_entries(
    queues: Mapping[QueueKey, queue_store.ConsumeQueue], needed_from: NeededFrom
) -> Iterator[tuple[QueueKey, queue_store.QueueEntry]]:
    """Yield the deletable messages of all queues, in the order in which they were stored."""
    heads: list[tuple[int, QueueKey, int, int]] = []
    for key, queue in queues.items():
        needed = needed_from(*key)
        end = queue.max_offset if needed is None else min(needed, queue.max_offset)
        first = queue.entry(queue.min_offset)
        if first is not None and queue.next_entry_offset(queue.min_offset) <= end:
            heads.append((first.commit_log_offset, key, queue.min_offset, end))
    heapify(heads)
    while heads:
        _, key, offset, end = heads[0]
        queue = queues[key]
        entry = queue.entry(offset)
        assert entry is not None  # between min_offset and max_offset
        yield key, entry
        after = queue.next_entry_offset(offset)
        following = queue.entry(after)
        if following is not None and queue.next_entry_offset(after) <= end:
            heapreplace(heads, (following.commit_log_offset, key, after, end))
        else:
            heappop(heads)


log = structlog.get_logger(__name__)

RETENTION_SECONDS: Final = 10.0  # Java: cleanResourceInterval
MAX_AT_ONCE: Final = 5000  # messages deleted in one turn of the loop
_LOG_END: Final = "end"
_HOUR_MS: Final = 3_600_000

_tags_hash = lru_cache(maxsize=4096)(java_hash)


class PutResult(NamedTuple):
    """The position of a stored message. `store_timestamp` is in milliseconds since 1970."""

    queue_offset: int
    commit_log_offset: int
    store_timestamp: int


class StoredArrival(NamedTuple):
    """A message that was just stored."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    record: bytes


@contextlib.contextmanager
def dropping_damaged() -> Iterator[None]:
    """Drop a stored message that cannot be read or stored again, so that it does not block the delivery of others."""
    try:
        yield
    except (ProtocolError, InvalidMessageError, KeyError, ValueError) as error:
        log.exception("broker.message_dropped", error=str(error))


class MessageStore:
    """Records in a log, and an index for each queue, which is built from the log at every start.

    `store_host` is the broker's "ip:port". Raises StorageError if the log is damaged.
    """

    def __init__(
        self, clock: Clock, store_host: str, settings: BrokerSettings, log: RecordLog, journal: Journal
    ) -> None:
        self.size_bytes = 0
        """The total size of all records that are kept."""
        self.newest = 0, 0
        """The commit log offset and store time (milliseconds) of the last stored message."""
        self.end = 0
        """The commit log offset of the next message."""
        self._host = parse_host(store_host)
        self._clock = clock
        self._log = log
        self._journal = journal
        self._queues: defaultdict[QueueKey, queue_store.ConsumeQueue] = defaultdict(queue_store.ConsumeQueue)
        self._batches: dict[int, int] = {}
        """The number of members of each batch stored as one record, by commit log offset."""
        self.light = queue_store.LightQueues(journal)
        self._listeners: list[Callable[[StoredArrival], None]] = []
        self._light_listeners: list[Callable[[StoredArrival], None]] = []
        self._keepers: list[NeededFrom] = []
        self.change_settings(settings)
        self._recover()

    @property
    def oldest(self) -> queue_store.QueueEntry | None:
        """The index entry of the oldest message that is still kept; None if the store is empty."""
        firsts = (queue.entry(queue.min_offset) for queue in self._queues.values())
        return min((entry for entry in firsts if entry is not None), default=None)

    def on_arrival(self, listener: Callable[[StoredArrival], None]) -> None:
        """Call `listener` for each message, right after it is stored."""
        self._listeners.append(listener)

    def on_light_arrival(self, listener: Callable[[StoredArrival], None]) -> None:
        """Call `listener` when a message is added to a light queue, once for each light queue."""
        self._light_listeners.append(listener)

    def add_retention_rule(self, needed_from: NeededFrom) -> None:
        """Never delete messages at or after the offset that `needed_from` returns, whatever their age."""
        self._keepers.append(needed_from)

    def put(self, message: StoredMessage, tags_code: int | None = None, *, members: int = 0) -> PutResult:
        """Store a message at the end of its queue, and set its offsets, store time and store host.

        `tags_code` is stored in the index instead of the tag's hash. A batch stored as one record takes as many offsets
        as it has `members`, and also gets its first offset as a property. Raises InvalidMessageError, and Refusal while
        the log cannot be written.
        """
        topic, queue_id, at = message.topic, message.queue_id, self.end
        queue = self._queues[topic, queue_id]
        queue_offset = queue.max_offset
        now = int(self._clock.wall() * 1000)
        if members:
            message = replace(message, properties={**message.properties, INNER_BASE: str(queue_offset)})
        named = self.light.offsets(message) if self._has_light_queues else {}
        light = {name: offset for name, offset in named.items() if offset is not None}
        if named:
            offsets = LIGHT_QUEUE_SEPARATOR.join("null" if offset is None else str(offset) for offset in named.values())
            message = replace(message, properties={**message.properties, INNER_MULTI_QUEUE_OFFSET: offsets})
        record = encode_record(message, queue_offset, at, now, self._host)
        if tags_code is None:
            tags = message.properties.get(TAGS)
            tags_code = _tags_hash(tags) if tags else 0
        self._log.append(RecordRow(at, topic, queue_id, queue_offset, tags_code, now, record))
        size = len(record)
        self.end = at + size
        self.newest = at, now
        if members > 1:
            self._batches[at] = members
            self._journal.put(JournalKind.BATCH, str(at), str(members))
        queue.append(at, size, tags_code, now, max(1, members))
        self.size_bytes += size
        if self.size_bytes > self._room_until:
            self._make_room()
        arrival = StoredArrival(topic, queue_id, queue_offset, tags_code, record)
        for listener in self._listeners:
            listener(arrival)
        if light:
            self.light.put(light, queue_store.QueueEntry(at, size, tags_code, now))
            for name, offset in light.items():
                for listener in self._light_listeners:
                    listener(StoredArrival(name, LIGHT_QUEUE_ID, offset, tags_code, record))
        return PutResult(queue_offset, at, now)

    def record(self, commit_log_offset: int) -> bytes | None:
        """Return the record that begins at a commit log offset; None if no record begins there."""
        return self._log.read(commit_log_offset)

    def queue(self, topic: str, queue_id: int) -> queue_store.ConsumeQueue | None:
        """Return the index of a queue; None if the queue never had a message."""
        queue = self._queues.get((topic, queue_id))
        if queue is None and queue_id == LIGHT_QUEUE_ID and is_light_queue(topic):
            return self.light.queue(topic)
        return queue

    def entry(self, topic: str, queue_id: int, offset: int) -> queue_store.QueueEntry | None:
        """Return the index entry of a message; None if the store does not have the message."""
        queue = self.queue(topic, queue_id)
        return None if queue is None else queue.entry(offset)

    def record_of(self, topic: str, queue_id: int, offset: int) -> bytes | None:
        """Return the record of a message; None if the store does not have the message."""
        entry = self.entry(topic, queue_id, offset)
        return None if entry is None else self.record(entry.commit_log_offset)

    def queues(self, topic: str) -> dict[int, queue_store.ConsumeQueue]:
        """Return the queues of a topic that ever had a message, by queue id."""
        return {queue_id: queue for (name, queue_id), queue in self._queues.items() if name == topic}

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's first message that is still kept; 0 if the queue never had a message."""
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message; 0 if the queue never had a message."""
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """Return the offset of the first message at or after a time; with `upper`, of the last message up to it."""
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.offset_by_time(timestamp_ms, upper=upper)

    def get(
        self, topic: str, queue_id: int, offset: int, max_nums: int, wanted: MessageFilter | None = None
    ) -> queue_store.GetResult:
        """Read messages from `offset` on, up to the limits of one response. `wanted` None reads all messages."""
        return queue_store.get_messages(self._log, self.queue(topic, queue_id), offset, max_nums, wanted, self._limits)

    def delete_topic(self, topic: str) -> None:
        for queue_id, queue in self.queues(topic).items():
            del self._queues[topic, queue_id]
            offsets, sizes = queue.records(queue.min_offset, queue.max_offset)
            self.size_bytes -= sum(sizes)
            self._discard(offsets)
            self._journal.delete(JournalKind.QUEUE, key_of(topic, queue_id))
        self._journal.put(JournalKind.LOG, _LOG_END, str(self.end))

    def change_settings(self, settings: BrokerSettings) -> None:
        """Apply other limits for reads and retention. maxStoreSize 0 stands for the log's usual size."""
        self._limits = queue_store.TransferLimits(
            settings.maxTransferCountOnMessageInMemory, settings.maxTransferBytesOnMessageInMemory
        )
        self._has_light_queues = settings.enableLmq and settings.enableMultiDispatch
        self._reserved_ms = settings.fileReservedTime * _HOUR_MS
        self._capacity = self._room_until = settings.maxStoreSize or self._log.usual_capacity_bytes

    def expire(self) -> int:
        """Delete messages older than fileReservedTime, at most MAX_AT_ONCE. Returns the number of deleted messages."""
        before = int(self._clock.wall() * 1000) - self._reserved_ms
        return self._discard_while(lambda entry: entry.store_timestamp < before)

    async def run(self) -> None:
        """Delete expired messages every RETENTION_SECONDS, until cancelled."""
        while True:
            deleted = self.expire()
            await asyncio.sleep(0 if deleted else RETENTION_SECONDS)

    def _make_room(self) -> None:
        """Delete the oldest messages of a full store, and some more, so that the next puts need not delete again.

        Messages in the newest half of the capacity stay. Otherwise a store full of delayed messages, which must stay,
        would delete each new message at once.
        """
        slack = self._capacity // 256
        left = self.size_bytes - self._capacity + slack
        newest = self.end - self._capacity // 2

        def may_delete(entry: queue_store.QueueEntry) -> bool:
            nonlocal left
            left -= entry.size
            return left + entry.size > 0 and entry.commit_log_offset < newest

        # if other messages are still needed, try again only after more puts
        wait = slack if self._discard_while(may_delete) < MAX_AT_ONCE else 0
        self._room_until = max(self._capacity, self.size_bytes + wait)

    def _discard_while(self, may_delete: Callable[[queue_store.QueueEntry], bool]) -> int:
        counts: Counter[QueueKey] = Counter()
        offsets = []
        for key, entry in islice(deletable_entries(self._queues, self._needed_from), MAX_AT_ONCE):
            if not may_delete(entry):
                break
            counts[key] += 1
            offsets.append(entry.commit_log_offset)
            self.size_bytes -= entry.size
        for key, count in counts.items():
            queue = self._queues[key]
            queue.discard(count)
            self._journal.put(JournalKind.QUEUE, key_of(*key), str(queue.min_offset))
        if offsets:
            self._discard(offsets)
            self._journal.put(JournalKind.LOG, _LOG_END, str(self.end))
        return len(offsets)

    def _discard(self, commit_log_offsets: Iterable[int]) -> None:
        for at in commit_log_offsets if self._batches else ():
            if self._batches.pop(at, None) is not None:
                self._journal.delete(JournalKind.BATCH, str(at))
        self.light.discard(commit_log_offsets)
        self._log.discard(commit_log_offsets)

    def _needed_from(self, topic: str, queue_id: int) -> int | None:
        return min(
            (offset for keeper in self._keepers if (offset := keeper(topic, queue_id)) is not None), default=None
        )

    def _recover(self) -> None:
        """Build the indexes from the log. The journal has the first offsets of queues with deleted messages."""
        queues = self._queues
        self._batches.update((int(at), int(members)) for at, members in self._journal.items(JournalKind.BATCH))
        for row, min_offset in self._journal.items(JournalKind.QUEUE):
            name, number = row.rsplit(SEPARATOR, 1)
            queues[name, int(number)] = queue_store.ConsumeQueue(int(min_offset))
        for at, topic, queue_id, queue_offset, tags_code, store_timestamp, size in self._log.rows():
            queue = queues[topic, queue_id]
            if queue.max_offset != queue_offset:
                raise StorageError(
                    f"{self._log.name} is damaged: in queue {topic}:{queue_id}, offset {queue_offset} follows offset "
                    f"{queue.max_offset - 1}; move it away to start with an empty one"
                )
            self.newest = at, store_timestamp
            queue.append(at, size, tags_code, store_timestamp, self._batches.get(at, 1))
            self.light.recover(queue_store.QueueEntry(at, size, tags_code, store_timestamp))
            self.size_bytes += size
            self.end = at + size
        self.end = max([self.end, *(int(end) for _, end in self._journal.items(JournalKind.LOG))])
