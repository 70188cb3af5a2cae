"""The index of a queue: the positions of its messages in the log, and the choice of messages for one response.

Light message queues such as `%LMQ%room-7` are indexes of records that are stored in other topics. Java:
`ConsumeQueue`, `BatchConsumeQueue`, `LmqDispatch`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from rmqd.broker.filter.message_filter import MessageFilter
from rmqd.broker.store.journal import Journal, JournalKind, RecordLog
from rmqd.wire.lite_topic import parent_topic_of
from rmqd.wire.messages.decode import LIGHT_QUEUE_SEPARATOR as SEPARATOR
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.messages.properties import INNER_MULTI_DISPATCH
from rmqd.wire.topics import RETRY_PREFIX, SCHEDULE_TOPIC, is_light_queue


class QueueEntry(NamedTuple):
    """The index entry of a message: its commit log offset and size, its tag's hash, its store time in milliseconds."""

    commit_log_offset: int
    size: int
    tags_code: int
    store_timestamp: int


class BatchEntry(NamedTuple):
    """The index entry of a record or batch. Its messages have the offsets from `offset` to before `following`."""

    offset: int
    following: int
    commit_log_offset: int
    size: int
    tags_code: int


class ConsumeQueue:
    """The entries of a queue, without gaps from `min_offset` to before `max_offset`, in columns (32 bytes per entry).

    A batch that is stored as one record has one entry, which takes several offsets. Only a queue that ever had a batch
    has a column of offsets.
    """

    __slots__ = (
        "_commit_log_offsets", "_end", "_offsets", "_sizes", "_store_timestamps", "_tags_codes", "min_offset",
    )  # fmt: skip

    def __init__(self, min_offset: int = 0) -> None:
        self.min_offset = min_offset
        self._commit_log_offsets = array("q")
        self._sizes = array("q")
        self._tags_codes = array("q")
        self._store_timestamps = array("q")
        self._offsets: array[int] | None = None
        self._end = 0  # the offset of the next message, if `_offsets` is used

    @property
    def max_offset(self) -> int:
        """The offset of the next message."""
        return self.min_offset + len(self._sizes) if self._offsets is None else self._end

    @property
    def has_batches(self) -> bool:
        """Whether an entry may take several offsets."""
        return self._offsets is not None

    def append(self, commit_log_offset: int, size: int, tags_code: int, store_timestamp: int, members: int = 1) -> None:
        """Add the entry of the next message, or of the next batch of `members` messages."""
        if members > 1 and self._offsets is None:
            self._end = self.max_offset
            self._offsets = array("q", range(self.min_offset, self._end))
        if self._offsets is not None:
            self._offsets.append(self._end)
            self._end += members
        self._commit_log_offsets.append(commit_log_offset)
        self._sizes.append(size)
        self._tags_codes.append(tags_code)
        self._store_timestamps.append(store_timestamp)

    def entry(self, offset: int) -> QueueEntry | None:
        """Return the entry at an offset; None if the queue has no message at the offset."""
        at = self._position(offset)
        if not 0 <= at < len(self._sizes):
            return None
        return QueueEntry(
            self._commit_log_offsets[at], self._sizes[at], self._tags_codes[at], self._store_timestamps[at]
        )

    def entries(self, offset: int, most: int) -> list[QueueEntry]:
        span = self._span(offset, most)
        columns = (
            self._commit_log_offsets[span],
            self._sizes[span],
            self._tags_codes[span],
            self._store_timestamps[span],
        )
        return list(map(QueueEntry, *columns))

    def records(self, offset: int, most: int) -> tuple[array[int], array[int]]:
        """Return the commit log offsets and the sizes of at most `most` records from an offset on."""
        span = self._span(offset, most)
        return self._commit_log_offsets[span], self._sizes[span]

    def tagged_records(self, offset: int, most: int) -> Iterator[tuple[int, int, int]]:
        """Return commit log offset, size and tag hash of each record from an offset on, at most `most`."""
        span = self._span(offset, most)
        return zip(self._commit_log_offsets[span], self._sizes[span], self._tags_codes[span], strict=True)

    def batches(self, offset: int) -> Iterator[BatchEntry]:
        """Yield the entry that contains the offset, and all later entries."""
        first = max(0, self._position(offset))
        for at in range(first, len(self._sizes)):
            begin, end = self._offset(at), self._offset(at + 1)
            yield BatchEntry(begin, end, self._commit_log_offsets[at], self._sizes[at], self._tags_codes[at])

    def next_entry_offset(self, offset: int) -> int:
        """Return the first offset after the entry that contains this offset."""
        return self._offset(self._position(offset) + 1)

    def newest_first(self, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Return, newest first, the commit log offsets of messages stored from `begin_ms` to `end_ms` inclusive."""
        first = bisect_left(self._store_timestamps, begin_ms)
        return reversed(self._commit_log_offsets[first : bisect_right(self._store_timestamps, end_ms)])

    def discard(self, count: int) -> None:
        """Remove the `count` oldest entries."""
        self.min_offset = self._offset(count)
        for column in (self._commit_log_offsets, self._sizes, self._tags_codes, self._store_timestamps):
            del column[:count]
        if self._offsets is not None:
            del self._offsets[:count]

    def offset_by_time(self, timestamp_ms: int, *, upper: bool) -> int:
        """Find an offset by time, like MessageStore.offset_by_time."""
        if upper:
            return self._offset(max(0, bisect_right(self._store_timestamps, timestamp_ms) - 1))
        return self._offset(bisect_left(self._store_timestamps, timestamp_ms))

    def _position(self, offset: int) -> int:
        """Return the position of an offset's entry in the columns; outside the columns if there is no entry."""
        if self._offsets is None:
            return offset - self.min_offset
        return bisect_right(self._offsets, offset) - 1 if offset < self._end else len(self._sizes)

    def _offset(self, position: int) -> int:
        """Return the first offset of the entry at a position. After the last entry, this is the queue's next offset."""
        if self._offsets is None:
            return self.min_offset + position
        return self._offsets[position] if position < len(self._offsets) else self._end

    def _span(self, offset: int, most: int) -> slice:
        start = max(0, self._position(offset))
        return slice(start, start + most)


_SYSTEM_PREFIX: Final = "rmq_sys_"


class LightQueues:
    """The indexes of light queues by name. The journal stores the names of each record's light queues."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._queues: defaultdict[str, ConsumeQueue] = defaultdict(ConsumeQueue)
        self._names = {int(at): value.split(SEPARATOR) for at, value in journal.items(JournalKind.LIGHT)}
        for name, min_offset in journal.items(JournalKind.LIGHT_QUEUE):
            self._queues[name] = ConsumeQueue(int(min_offset))

    def queue(self, name: str) -> ConsumeQueue | None:
        """Return the index of a light queue; None if the queue never had a message."""
        return self._queues.get(name)

    def names_of_parent_topic(self, parent_topic: str) -> list[str]:
        """Return the names of the lite topic queues of a parent topic."""
        return [name for name in self._queues if parent_topic_of(name) == parent_topic]

    def offsets(self, message: StoredMessage) -> dict[str, int | None]:
        """Return the next offset in each light queue that a message names; None for names of other queues."""
        names = message.properties.get(INNER_MULTI_DISPATCH)
        if not names or message.topic == SCHEDULE_TOPIC or message.topic.startswith((RETRY_PREFIX, _SYSTEM_PREFIX)):
            return {}
        return {
            name: self._queues[name].max_offset if is_light_queue(name) else None for name in names.split(SEPARATOR)
        }

    def put(self, names: Collection[str], entry: QueueEntry) -> None:
        """Add a record that was just stored to light queues."""
        self._names[entry.commit_log_offset] = list(names)
        self._journal.put(JournalKind.LIGHT, str(entry.commit_log_offset), SEPARATOR.join(names))
        self._append(names, entry)

    def recover(self, entry: QueueEntry) -> None:
        """Add a record that was stored before this start to its light queues, if any."""
        self._append(self._names.get(entry.commit_log_offset, ()), entry)

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Remove deleted records from their light queues, together with all earlier entries of these queues."""
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
            self._journal.put(JournalKind.LIGHT_QUEUE, name, str(queue.min_offset))

    def delete(self, name: str) -> None:
        """Remove a light queue. Its records stay in the topics that store them."""
        if self._queues.pop(name, None) is not None:
            self._journal.delete(JournalKind.LIGHT_QUEUE, name)
            for at in [at for at, names in self._names.items() if name in names]:
                self._take_out(name, at)

    def _take_out(self, name: str, at: int) -> None:
        names = self._names[at]
        names.remove(name)
        if names:
            self._journal.put(JournalKind.LIGHT, str(at), SEPARATOR.join(names))
        else:
            del self._names[at]
            self._journal.delete(JournalKind.LIGHT, str(at))

    def _append(self, names: Iterable[str], entry: QueueEntry) -> None:
        for name in names:
            self._queues[name].append(*entry)


MAX_SCANNED: Final = 800  # entries that one read checks; Java: maxFilterMessageSize, 16000 bytes of 20-byte entries


class GetMessageStatus(StrEnum):
    """The outcome of a read. It is also the remark in the response to a pull."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_RESET = "OFFSET_RESET"


class TransferLimits(NamedTuple):
    """The limits of one read. `size` is in bytes. The first message is returned even if it is larger."""

    messages: int
    size: int


class GetResult(NamedTuple):
    """The result of a read. `next_begin_offset` is the offset at which the next read continues."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: list[bytes]


def get_messages(
    log: RecordLog,
    queue: ConsumeQueue | None,
    offset: int,
    max_nums: int,
    wanted: MessageFilter | None,
    limits: TransferLimits,
) -> GetResult:
    """Read messages from `offset` on, up to `limits`. `queue` is None if the queue never had a message."""
    if queue is None:
        return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [])
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [])
    if offset < low:
        return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high, [])
    if offset == high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [])
    if offset > high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [])
    if queue.has_batches:
        records, following = _read_batches(log, queue, offset, max_nums, wanted, limits)
    elif wanted is None:
        records = _read(log, *queue.records(offset, max(1, min(max_nums, limits.messages))), limits.size)
        return GetResult(GetMessageStatus.FOUND, offset + len(records), low, high, records)
    else:
        records, following = _read_wanted(log, queue, offset, max_nums, wanted, limits)
    status = GetMessageStatus.FOUND if records else GetMessageStatus.NO_MATCHED_MESSAGE
    return GetResult(status, following, low, high, records)


def _read(log: RecordLog, offsets: array[int], sizes: array[int], most_bytes: int) -> list[bytes]:
    if sum(sizes) > most_bytes:
        fitting = bisect_right(list(accumulate(sizes)), most_bytes)
        del offsets[max(1, fitting) :]
    return log.read_many(offsets)


def _read_wanted(
    log: RecordLog, queue: ConsumeQueue, offset: int, max_nums: int, wanted: MessageFilter, limits: TransferLimits
) -> tuple[list[bytes], int]:
    """Return the records that pass, and the next offset. As in Java, the limits are checked before the filter."""
    records: list[bytes] = []
    bytes_left, most, read = limits.size, min(max_nums, limits.messages), log.read
    for at, size, tags_code in queue.tagged_records(offset, max(MAX_SCANNED, max_nums)):
        if records and (len(records) >= most or size > bytes_left):
            break
        offset += 1
        if wanted.matches_code(tags_code):
            record = read(at)
            if record is not None and wanted.matches_record(record):
                records.append(record)
                bytes_left -= size
    return records, offset


def _read_batches(
    log: RecordLog,
    queue: ConsumeQueue,
    offset: int,
    max_nums: int,
    wanted: MessageFilter | None,
    limits: TransferLimits,
) -> tuple[list[bytes], int]:
    """Return records and the next offset like `_read_wanted`. A batch is read as a whole, even if `offset` is inside.

    A batch that would exceed the requested number waits for the next read, unless it is the first record.
    """
    records: list[bytes] = []
    members, size, following = 0, 0, offset
    for batch in queue.batches(offset):
        count = batch.following - batch.offset
        full = members + count > max_nums or members >= limits.messages or size + batch.size > limits.size
        if (records and full) or batch.offset - offset >= max(MAX_SCANNED, max_nums):
            break
        following = batch.following
        if wanted is not None and not wanted.matches_code(batch.tags_code):
            continue
        record = log.read(batch.commit_log_offset)
        if record is not None and (wanted is None or wanted.matches_record(record)):
            records.append(record)
            members, size = members + count, size + batch.size
    return records, following
