"""MessageStore: what was sent, by queue and by commit log offset (`DefaultMessageStore.java`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from rmqd.broker.store.consume_queue import ConsumeQueue, QueueEntry
from rmqd.clock import Clock
from rmqd.wire.filter import java_hash
from rmqd.wire.message_encode import StoredMessage, encode_message
from rmqd.wire.properties import TAGS

MAX_TRANSFER_COUNT: Final = 32  # Java: maxTransferCountOnMessageInMemory
MAX_TRANSFER_BYTES: Final = 262144  # Java: maxTransferBytesOnMessageInMemory
MAX_SCANNED: Final = 800  # Java: maxFilterMessageSize 16000 bytes of entries of 20


class GetMessageStatus(StrEnum):
    """How a read ended; the name is the remark of the reply to a pull."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    OFFSET_RESET = "OFFSET_RESET"


class MessageFilter(Protocol):
    """What a pull wants of a queue."""

    def matches_code(self, tags_code: int) -> bool:
        """Whether the tag's hash may belong to a message that is wanted; asked first."""

    def matches_record(self, record: bytes) -> bool:
        """Whether the message is wanted, by its properties; asked where the tag's hash may be."""


class PutResult(NamedTuple):
    """Where a message was stored; `store_timestamp` is in milliseconds."""

    queue_offset: int
    commit_log_offset: int
    store_timestamp: int


class GetResult(NamedTuple):
    """What a read gave, and where the next one goes on."""

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: list[bytes]


class Arrival(NamedTuple):
    """A message that was stored just now."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    record: bytes


class MessageStore:
    """Records by commit log offset, and an index for each queue. `store_host` is the broker's "ip:port"."""

    def __init__(self, clock: Clock, store_host: str) -> None:
        self.store_host = store_host
        self._clock = clock
        self._records: dict[int, bytes] = {}
        self._end = 0
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self._listeners: list[Callable[[Arrival], None]] = []

    def on_arrival(self, listener: Callable[[Arrival], None]) -> None:
        """Have `listener` called for each message, right after it is stored."""
        self._listeners.append(listener)

    def put(self, message: StoredMessage, tags_code: int | None = None) -> PutResult:
        """Store a message at the end of its queue: its offsets, store time and store host are set here.

        `tags_code` is what the index keeps in place of the tag's hash. Raises InvalidMessageError.
        """
        queue = self._queues.setdefault(message.topic, {}).setdefault(message.queue_id, ConsumeQueue())
        now = int(self._clock.wall() * 1000)
        message = replace(
            message,
            queue_offset=queue.max_offset,
            commit_log_offset=self._end,
            store_timestamp=now,
            store_host=self.store_host,
        )
        record = encode_message(message)
        if tags_code is None:
            tags_code = java_hash(message.properties.get(TAGS, ""))
        self._records[self._end] = record
        self._end += len(record)
        queue.append(QueueEntry(message.commit_log_offset, len(record), tags_code, now))
        arrival = Arrival(message.topic, message.queue_id, message.queue_offset, tags_code, record)
        for listener in self._listeners:
            listener(arrival)
        return PutResult(message.queue_offset, message.commit_log_offset, now)

    def record(self, commit_log_offset: int) -> bytes | None:
        """The record that begins at a commit log offset."""
        return self._records.get(commit_log_offset)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The index of a queue; None where nothing was ever stored in it."""
        return self._queues.get(topic, {}).get(queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """The offset of the first message that is still kept."""
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """The offset that the next message gets."""
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The offset of the first message stored at this time or later; with `upper`, of the last one not later."""
        queue = self.queue(topic, queue_id)
        return 0 if queue is None else queue.offset_by_time(timestamp_ms, upper=upper)

    def get(
        self, topic: str, queue_id: int, offset: int, max_nums: int, wanted: MessageFilter | None = None
    ) -> GetResult:
        """Read from `offset` on, up to the limits of one reply."""
        queue = self.queue(topic, queue_id)
        if queue is None:
            return GetResult(GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [])
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [])
        if offset < low:
            return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high, [])
        if offset == high:
            return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [])
        if offset > high:
            return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [])
        records: list[bytes] = []
        size, at = 0, offset
        most = min(max_nums, MAX_TRANSFER_COUNT)
        for entry in queue.entries(offset, max(MAX_SCANNED, max_nums)):
            if wanted is None or wanted.matches_code(entry.tags_code):
                if records and (len(records) >= most or size + entry.size > MAX_TRANSFER_BYTES):
                    break
                record = self._records[entry.commit_log_offset]
                if wanted is None or wanted.matches_record(record):
                    records.append(record)
                    size += entry.size
            at += 1
        status = GetMessageStatus.FOUND if records else GetMessageStatus.NO_MATCHED_MESSAGE
        return GetResult(status, at, low, high, records)

    def delete_topic(self, topic: str) -> None:
        """Forget a topic's messages."""
        for queue in self._queues.pop(topic, {}).values():
            for entry in queue.entries(queue.min_offset, queue.max_offset):
                self._records.pop(entry.commit_log_offset, None)
