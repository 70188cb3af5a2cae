"""The state that outlives the process: the records of messages, and a row for each topic, group, offset and so on.

MemoryRecordLog keeps the records in memory; `data_dir` stores them in a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol


class JournalKind(StrEnum):
    TOPIC = "topic"
    STATIC_TOPIC = "static_topic"
    GROUP = "group"
    FORBIDDEN = "forbidden"
    REQUEST_MODE = "request_mode"
    OFFSET = "offset"
    RESET = "reset"
    DELAY = "delay"
    TIMER = "timer"
    POPPED = "popped"
    POP_ORDER = "pop_order"
    KEY_VALUE = "key_value"
    QUEUE = "queue"
    LOG = "log"
    BATCH = "batch"
    LIGHT = "light"
    LIGHT_QUEUE = "light_queue"


SEPARATOR: Final = "@"  # names of groups and topics never contain it, but names of light queues may


def key_of(*parts: object) -> str:
    """Return the key of a journal row: its parts, such as topic, group and queue id, joined by SEPARATOR."""
    return SEPARATOR.join(map(str, parts))


class Journal(Protocol):
    """Stores small state by kind and key.

    All changes of one turn of the event loop become durable together with the messages of that turn, before any
    response of the turn is sent.
    """

    def put(self, kind: JournalKind, key: str, value: str) -> None:
        """Store a value, replacing the previous one."""

    def delete(self, kind: JournalKind, key: str) -> None:
        """Delete a value, if it exists."""

    def items(self, kind: JournalKind) -> Iterator[tuple[str, str]]:
        """Return the keys and values of a kind that were stored before the broker started."""


class NoJournal:
    """The journal of a broker without a data dir: it stores nothing."""

    def put(self, kind: JournalKind, key: str, value: str) -> None:
        """Do nothing: without a data dir, all state is only in memory."""

    def delete(self, kind: JournalKind, key: str) -> None:
        """Do nothing."""

    def items(self, kind: JournalKind) -> Iterator[tuple[str, str]]:
        return iter(())


MEMORY_BYTES: Final = 256 * 1024 * 1024


LogRow = tuple[int, str, int, int, int, int, int]
"""A record's commit log offset, topic, queue id, queue offset, tags code, store time (milliseconds), size in bytes."""


class RecordRow(NamedTuple):
    """A record with its queue and offsets. `store_timestamp` is in milliseconds since 1970."""

    commit_log_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    store_timestamp: int
    record: bytes


class RecordLog(Protocol):
    """Stores records by their commit log offset."""

    name: str
    """The log's name in error messages."""
    usual_capacity_bytes: int
    """The capacity of the log if `maxStoreSize` is 0."""

    def append(self, row: RecordRow) -> None:
        """Append a record. Raises Refusal while the log cannot be written."""

    def read(self, commit_log_offset: int) -> bytes | None:
        """Return the record at a commit log offset; None if no record begins there."""

    def read_many(self, commit_log_offsets: Sequence[int]) -> list[bytes]:
        """Return several records. Raises KeyError if a record does not exist."""

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Delete records."""

    def rows(self) -> Iterator[LogRow]:
        """Yield the records that were stored before the broker started, in order, without their bytes."""


class MemoryRecordLog:
    """The log of a broker without a data dir."""

    name = "memory"
    usual_capacity_bytes = MEMORY_BYTES

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}

    def append(self, row: RecordRow) -> None:
        self._records[row.commit_log_offset] = row.record

    def read(self, commit_log_offset: int) -> bytes | None:
        return self._records.get(commit_log_offset)

    def read_many(self, commit_log_offsets: Sequence[int]) -> list[bytes]:
        return [self._records[offset] for offset in commit_log_offsets]

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        for offset in commit_log_offsets:
            self._records.pop(offset, None)

    def rows(self) -> Iterator[LogRow]:
        """Return nothing, because records do not survive the process."""
        return iter(())
