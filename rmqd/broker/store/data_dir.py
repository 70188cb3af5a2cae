"""DataDir: the records and the journal in a folder, in one SQLite database (WAL).

All changes of one turn of the event loop are one transaction. It is committed before the responses of the turn are
sent. With synchronous=NORMAL a commit is written to the operating system and does not wait for the disk. So all
acknowledged changes survive the end of the process, even a crash. A power cut may undo the last commits, but never a
part of a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from rmqd.broker.peer_channel import Refusal
from rmqd.broker.store.broker_database import open_database, storage_error
from rmqd.broker.store.journal import JournalKind, LogRow, RecordRow
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError, StorageError

log = structlog.get_logger(__name__)

FILE_NAME: Final = "broker.sqlite3"
DISK_BYTES: Final = 1024 * 1024 * 1024
CACHE_BYTES: Final = 64 * 1024 * 1024  # newest records in memory, which consumers without lag read
_RETRY_SECONDS: Final = 1.0
_FULL: Final = (
    "service not available now. It may be caused by one of the following reasons: "
    "the broker's disk is full, messages are put to the slave, message store has been shut down, etc."
)

_APPEND: Final = "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?)"
_READ: Final = "SELECT record FROM record WHERE commit_log_offset = ?"
_READ_MANY: Final = "SELECT commit_log_offset, record FROM record WHERE commit_log_offset IN ({})"
_DISCARD: Final = "DELETE FROM record WHERE commit_log_offset = ?"
_ROWS: Final = """SELECT commit_log_offset, topic, queue_id, queue_offset, tags_code, store_timestamp, length(record)
FROM record ORDER BY commit_log_offset"""
_PUT: Final = "INSERT OR REPLACE INTO journal VALUES (?, ?, ?)"
_DELETE: Final = "DELETE FROM journal WHERE kind = ? AND key = ?"


class DataDir:
    """A RecordLog and a Journal in a folder. CACHE_BYTES of the newest records are also in memory.

    Raises StorageError if the folder cannot be locked or read.
    """

    usual_capacity_bytes = DISK_BYTES

    def __init__(self, directory: Path) -> None:
        self.name = str(directory / FILE_NAME)
        self._loop = asyncio.get_running_loop()
        self._appended: list[RecordRow] = []
        self._discarded: list[int] = []
        self._values: dict[tuple[JournalKind, str], str | None] = {}
        self._newest: dict[int, bytes] = {}
        self._newest_bytes = 0
        self._commit_due = False
        self._failing = False
        self._connection, self._last = open_database(directory / FILE_NAME)

    def append(self, row: RecordRow) -> None:
        """Append a record. Raises Refusal while the disk cannot be written."""
        if self._failing:  # commit first, so that unwritten changes do not grow
            try:
                self.commit()
            except StorageError as error:
                raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, _FULL) from error
        self._appended.append(row)
        self._newest[row.commit_log_offset] = row.record
        self._newest_bytes += len(row.record)
        self._commit_soon()

    def read(self, commit_log_offset: int) -> bytes | None:
        record = self._newest.get(commit_log_offset)
        if record is None:
            row = next(self._select(_READ, commit_log_offset), None)
            record = None if row is None else row[0]
        return record

    def read_many(self, commit_log_offsets: Sequence[int]) -> list[bytes]:
        newest = self._newest
        older = [offset for offset in commit_log_offsets if offset not in newest]
        if not older:
            return [newest[offset] for offset in commit_log_offsets]
        found = dict(self._select(_READ_MANY.format(",".join("?" * len(older))), *older))
        return [newest.get(offset) or found[offset] for offset in commit_log_offsets]

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        for offset in commit_log_offsets:
            self._discarded.append(offset)
            record = self._newest.pop(offset, None)
            if record is not None:
                self._newest_bytes -= len(record)
        self._commit_soon()

    def rows(self) -> Iterator[LogRow]:
        return self._select(_ROWS)

    def put(self, kind: JournalKind, key: str, value: str) -> None:
        """Store a value. Raises ProtocolError for invalid Unicode, because it would make every commit fail."""
        try:
            (key + value).encode()
        except UnicodeEncodeError as error:
            raise ProtocolError(f"{key!r} cannot be stored, because it contains a lone surrogate") from error
        self._values[kind, key] = value
        self._commit_soon()

    def delete(self, kind: JournalKind, key: str) -> None:
        self._values[kind, key] = None
        self._commit_soon()

    def items(self, kind: JournalKind) -> Iterator[tuple[str, str]]:
        return iter(list(self._select("SELECT key, value FROM journal WHERE kind = ?", kind)))

    def commit(self) -> None:
        """Commit all changes. If that fails, raises StorageError, and keeps the changes for the next commit.

        Until a commit succeeds, responses must not be sent, because a crash would undo the changes that they report.
        """
        if not (self._appended or self._values or self._discarded):
            return
        error = self._write()
        if error is not None:
            if not self._failing:
                log.error("broker.data_dir_failed", path=self.name, error=str(error))
            self._failing = True
            raise StorageError(f"{self.name} cannot be written: {error}") from error
        if self._failing:
            log.warning("broker.data_dir_recovered", path=self.name)
        self._failing = False
        self._last.after_commit(self._appended, has_deleted=bool(self._discarded))
        self._nothing_to_write()
        self._forget_older()

    def close(self) -> None:
        """Commit, and unlock the folder."""
        with contextlib.suppress(StorageError):  # the error was logged already
            self.commit()
        self._nothing_to_write()  # also after a failure, because the database is closed now
        self._connection.close()
        self._last.close()

    def _select(self, query: str, *values: str | int) -> Iterator[Any]:
        try:
            yield from self._connection.execute(query, values)
        except sqlite3.Error as error:
            raise storage_error(Path(self.name), error) from error

    def _write(self) -> sqlite3.Error | None:
        """Write all changes in one transaction. Returns the error if nothing was written."""
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            if self._appended:
                connection.executemany(_APPEND, self._appended)
            if self._discarded:
                connection.executemany(_DISCARD, [(offset,) for offset in self._discarded])
                self._last.before_deletion()
            for (kind, key), value in self._values.items():
                if value is None:
                    connection.execute(_DELETE, (kind, key))
                else:
                    connection.execute(_PUT, (kind, key, value))
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                connection.execute("ROLLBACK")
            return error
        return None

    def _nothing_to_write(self) -> None:
        self._appended.clear()
        self._discarded.clear()
        self._values.clear()

    def _forget_older(self) -> None:
        """Remove the oldest quarter of a full cache at once. A dict with deletions at its front iterates slowly."""
        if self._newest_bytes <= CACHE_BYTES:
            return
        older = []
        for offset, record in self._newest.items():
            if self._newest_bytes <= CACHE_BYTES * 3 // 4:
                break
            older.append(offset)
            self._newest_bytes -= len(record)
        for offset in older:
            del self._newest[offset]

    def _commit_soon(self) -> None:
        """Commit at the end of this turn of the event loop, even if no response follows."""
        if not self._commit_due:
            self._commit_due = True
            self._loop.call_soon(self._commit_now)

    def _commit_now(self) -> None:
        self._commit_due = False
        try:
            self.commit()
        except StorageError:
            self._commit_due = True
            self._loop.call_later(_RETRY_SECONDS, self._commit_now)
