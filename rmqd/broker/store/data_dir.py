"""DataDir: the records and the journal in a folder, in one SQLite database (WAL) that only one process may have open.

All changes of one turn of the event loop are one transaction, which is committed before the replies of the turn are
sent. With synchronous=NORMAL a commit goes to the operating system and does not wait for the disk. So everything that
was acknowledged survives the end of the process, however it ends; a power cut may undo the last commits, but never a
part of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from rmqd.broker.journal import Kind
from rmqd.broker.reply import Refusal
from rmqd.broker.store.last_record import FILE_NAME as LAST_RECORD_NAME
from rmqd.broker.store.last_record import LastRecord
from rmqd.broker.store.record_log import LogRow, RecordRow
from rmqd.codes import ResponseCode
from rmqd.errors import ProtocolError, StorageError

log = structlog.get_logger(__name__)

FILE_NAME: Final = "broker.sqlite3"
FILE_MODE: Final = 0o640  # other users must not read messages
DISK_BYTES: Final = 1024 * 1024 * 1024
APPLICATION_ID: Final = 0x524D5144  # "RMQD"
SCHEMA_VERSION: Final = 1
HELD_BYTES: Final = 64 * 1024 * 1024  # of the newest records, which consumers without lag read from memory
_RETRY_SECONDS: Final = 1.0
_FULL: Final = (
    "service not available now. It may be caused by one of the following reasons: "
    "the broker's disk is full, messages are put to the slave, message store has been shut down, etc."
)

_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE record (
    commit_log_offset INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    queue_id INTEGER NOT NULL,
    queue_offset INTEGER NOT NULL,
    tags_code INTEGER NOT NULL,
    store_timestamp INTEGER NOT NULL,
    record BLOB NOT NULL
);
CREATE TABLE journal (kind TEXT, key TEXT, value TEXT NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""
_APPEND: Final = "INSERT INTO record VALUES (?, ?, ?, ?, ?, ?, ?)"
_READ: Final = "SELECT record FROM record WHERE commit_log_offset = ?"
_READ_MANY: Final = "SELECT commit_log_offset, record FROM record WHERE commit_log_offset IN ({})"
_DISCARD: Final = "DELETE FROM record WHERE commit_log_offset = ?"
_ROWS: Final = """SELECT commit_log_offset, topic, queue_id, queue_offset, tags_code, store_timestamp, length(record)
FROM record ORDER BY commit_log_offset"""
_PUT: Final = "INSERT OR REPLACE INTO journal VALUES (?, ?, ?)"
_DELETE: Final = "DELETE FROM journal WHERE kind = ? AND key = ?"


class DataDir:
    """A RecordLog and a Journal in a folder. `held_bytes` of the newest records are in memory too.

    Raises StorageError if the folder cannot be locked or read.
    """

    usual_capacity_bytes = DISK_BYTES

    def __init__(self, directory: Path, held_bytes: int = HELD_BYTES) -> None:
        self.name = str(directory / FILE_NAME)
        self._held_bytes = held_bytes
        self._loop = asyncio.get_running_loop()
        self._appended: list[RecordRow] = []
        self._discarded: list[int] = []
        self._values: dict[tuple[Kind, str], str | None] = {}
        self._newest: dict[int, bytes] = {}
        self._newest_bytes = 0
        self._commit_due = False
        self._failing = False
        self._connection, self._last = _open(directory / FILE_NAME)

    def append(self, row: RecordRow) -> None:
        """Append a record. Raises Refusal while the disk cannot be written."""
        if self._failing:
            self._try_again()
        self._appended.append(row)
        self._newest[row.commit_log_offset] = row.record
        self._newest_bytes += len(row.record)
        if not self._commit_due:
            self._commit_soon()

    def read(self, commit_log_offset: int) -> bytes | None:
        """The record at a commit log offset."""
        record = self._newest.get(commit_log_offset)
        if record is None:
            try:
                row = self._connection.execute(_READ, (commit_log_offset,)).fetchone()
            except sqlite3.Error as error:
                raise _unusable(Path(self.name), error) from error
            record = None if row is None else row[0]
        return record

    def read_many(self, commit_log_offsets: Sequence[int]) -> list[bytes]:
        """Several records, all of which exist."""
        newest = self._newest
        older = [offset for offset in commit_log_offsets if offset not in newest]
        if not older:
            return [newest[offset] for offset in commit_log_offsets]
        found = dict(self._select(_READ_MANY.format(",".join("?" * len(older))), *older))
        return [newest.get(offset) or found[offset] for offset in commit_log_offsets]

    def discard(self, commit_log_offsets: Iterable[int]) -> None:
        """Delete records."""
        for offset in commit_log_offsets:
            self._discarded.append(offset)
            record = self._newest.pop(offset, None)
            if record is not None:
                self._newest_bytes -= len(record)
        self._commit_soon()

    def rows(self) -> Iterator[LogRow]:
        """What was kept before this start."""
        return self._select(_ROWS)

    def put(self, kind: Kind, key: str, value: str) -> None:
        """Store a value. Raises ProtocolError for text that the database cannot store: it would block all commits."""
        try:
            (key + value).encode()
        except UnicodeEncodeError as error:
            raise ProtocolError(f"{key!r} cannot be kept, as it holds half a character") from error
        self._values[kind, key] = value
        if not self._commit_due:
            self._commit_soon()

    def delete(self, kind: Kind, key: str) -> None:
        """Forget a value."""
        self._values[kind, key] = None
        if not self._commit_due:
            self._commit_soon()

    def items(self, kind: Kind) -> Iterator[tuple[str, str]]:
        """What was kept before this start."""
        return iter(list(self._select("SELECT key, value FROM journal WHERE kind = ?", kind)))

    def commit(self) -> None:
        """Make all changes durable. Raises StorageError if that fails; the changes are kept, and tried again.

        Until it succeeds no reply may be sent, since any of them may depend on a change that a crash would undo.
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
        self._nothing_to_write()  # also after a failure: a later attempt would have no database
        self._connection.close()
        self._last.close()

    def _select(self, query: str, *values: str | int) -> Iterator[Any]:
        try:
            yield from self._connection.execute(query, values)
        except sqlite3.Error as error:
            raise _unusable(Path(self.name), error) from error

    def _write(self) -> sqlite3.Error | None:
        """Write everything in one transaction. Raises StorageError, with nothing written."""
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

    def _try_again(self) -> None:
        """Raise Refusal while the disk is full, so that the unwritten changes do not grow."""
        try:
            self.commit()
        except StorageError as error:
            raise Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, _FULL) from error

    def _forget_older(self) -> None:
        """Drop a quarter of the held records at once: a dict from whose front many were deleted is slow to iterate."""
        if self._newest_bytes <= self._held_bytes:
            return
        older = []
        for offset, record in self._newest.items():
            if self._newest_bytes <= self._held_bytes * 3 // 4:
                break
            older.append(offset)
            self._newest_bytes -= len(record)
        for offset in older:
            del self._newest[offset]

    def _commit_soon(self) -> None:
        """Have changes committed at the end of the turn, also if no reply follows."""
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


def _open(path: Path) -> tuple[sqlite3.Connection, LastRecord]:
    """Open and lock the database of a folder, and the note beside it. They are created if they do not exist."""
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT, FILE_MODE))  # SQLite gives its log the mode of the database
        is_new = not path.stat().st_size
        path.chmod(path.stat().st_mode & FILE_MODE)
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"the data dir {path.parent} cannot be used: {error}") from error
    try:
        _prepare(connection, path)
        last = LastRecord(path.with_name(LAST_RECORD_NAME), connection)
        last.begin(is_new)
    except sqlite3.Error as error:
        connection.close()
        raise _unusable(path, error) from error
    except OSError as error:
        connection.close()
        raise StorageError(f"the data dir {path.parent} cannot be used: {error}") from error
    except StorageError:
        connection.close()
        raise
    return connection, last


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # before any access: WAL then needs no shared memory
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if tables and application_id != APPLICATION_ID:
        raise StorageError(f"{path} is a database of something else than rmqd; name another data dir")
    if version > SCHEMA_VERSION:
        raise StorageError(f"{path} was written by a newer rmqd: its schema is {version}, ours {SCHEMA_VERSION}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")  # pages of 4 KiB: each checkpoint waits for the disk
    connection.execute("BEGIN IMMEDIATE")  # takes the lock that is not given up until the end
    connection.execute("COMMIT")
    if not tables:
        connection.executescript(_SCHEMA)


def _unusable(path: Path, error: sqlite3.Error) -> StorageError:
    # Python's own errors, such as for text that is not UTF-8, have no code: the database holds what we never wrote.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(f"the data dir {path.parent} is in use by another broker; end that one, or name another")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StorageError(f"{path} is damaged, or no database ({error}); move it away to start with an empty one")
    return StorageError(f"{path} cannot be used: {error}")
