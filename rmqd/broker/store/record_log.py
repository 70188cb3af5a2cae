"""RecordLog: where the records are, in memory here and in a folder's database in `data_dir`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

MEMORY_BYTES: Final = 256 * 1024 * 1024


LogRow = tuple[int, str, int, int, int, int, int]
"""Commit log offset, topic, queue id, queue offset, tags code, store timestamp in milliseconds, size in bytes."""


class RecordRow(NamedTuple):
    """A record and where it belongs; `store_timestamp` is in milliseconds."""

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
    """What people know it by."""
    usual_capacity_bytes: int
    """How much is kept where no setting says so."""

    def append(self, row: RecordRow) -> None:
        """Keep a record behind all others. Raises Refusal while the log cannot be written."""

    def read(self, commit_log_offset: int) -> bytes | None:
        """The record that begins there; None where none does."""

    def read_many(self, commit_log_offsets: Sequence[int]) -> list[bytes]:
        """Records that are there. Raises KeyError where one is not."""

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Forget records."""

    def rows(self) -> Iterator[LogRow]:
        """What was kept before this start, in the order in which it was appended, without its bytes."""


class MemoryRecordLog:
    """Of a broker that lives in memory only."""

    name = "memory"
    usual_capacity_bytes = MEMORY_BYTES

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}

    def append(self, row: RecordRow) -> None:
        """Keep a record."""
        self._records[row.commit_log_offset] = row.record

    def read(self, commit_log_offset: int) -> bytes | None:
        """The record that begins there."""
        return self._records.get(commit_log_offset)

    def read_many(self, commit_log_offsets: Sequence[int]) -> list[bytes]:
        """Records that are there."""
        records = self._records
        return [records[offset] for offset in commit_log_offsets]

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Forget records."""
        for offset in commit_log_offsets:
            self._records.pop(offset, None)

    def rows(self) -> Iterator[LogRow]:
        """Nothing was kept."""
        return iter(())
