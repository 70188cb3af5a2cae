"""RecordLog: the storage of records. The one here is in memory; that of `data_dir` is in a folder's database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

MEMORY_BYTES: Final = 256 * 1024 * 1024


LogRow = tuple[int, str, int, int, int, int, int]
"""Commit log offset, topic, queue id, queue offset, tags code, store timestamp in milliseconds, size in bytes."""


class RecordRow(NamedTuple):
    """A record, its queue and offsets. `store_timestamp` is in milliseconds."""

    commit_log_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    store_timestamp: int
    record: bytes


class RecordLog(Protocol):
    """Keeps records by their commit log offset."""

    name: str
    """The log's name in messages for people."""
    usual_capacity_bytes: int
    """The size of the log if no setting gives one."""

    def append(self, row: RecordRow) -> None:
        """Append a record. Raises Refusal while the log cannot be written."""

    def read(self, commit_log_offset: int) -> bytes | None:
        """The record at a commit log offset; None if none begins there."""

    def read_many(self, commit_log_offsets: Sequence[int]) -> list[bytes]:
        """Several records. Raises KeyError if one does not exist."""

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Forget records."""

    def rows(self) -> Iterator[LogRow]:
        """The records that were stored before this start, in their order, without their bytes."""


class MemoryRecordLog:
    """The log of a broker in memory."""

    name = "memory"
    usual_capacity_bytes = MEMORY_BYTES

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}

    def append(self, row: RecordRow) -> None:
        """Append a record."""
        self._records[row.commit_log_offset] = row.record

    def read(self, commit_log_offset: int) -> bytes | None:
        """The record that begins there."""
        return self._records.get(commit_log_offset)

    def read_many(self, commit_log_offsets: Sequence[int]) -> list[bytes]:
        """The records that begin at these offsets, all of which must be in the log."""
        records = self._records
        return [records[offset] for offset in commit_log_offsets]

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Forget records."""
        for offset in commit_log_offsets:
            self._records.pop(offset, None)

    def rows(self) -> Iterator[LogRow]:
        """Return nothing: no record survives the process."""
        return iter(())
