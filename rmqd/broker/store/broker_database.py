"""The SQLite database in a broker's data dir, and explanations of its errors. Only one process may open the database.

SQLite ignores the rest of its WAL from a frame with a wrong checksum on, without an error. The ignored part may be half
of a transaction that was cut when the process ended, or a thousand acknowledged messages. `LastRecord`, a file next to
the database, names the newest committed record, and so reveals a damaged WAL.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from rmqd.broker.store.journal import RecordRow
from rmqd.errors import StorageError

log = structlog.get_logger(__name__)

FILE_NAME: Final = "broker.last-record"
_NEWEST: Final = "SELECT commit_log_offset, store_timestamp FROM record ORDER BY commit_log_offset DESC LIMIT 1"


class RecordPlace(NamedTuple):
    """The position of a record. `store_timestamp` is in milliseconds since 1970."""

    commit_log_offset: int
    store_timestamp: int


_NONE: Final = RecordPlace(-1, 0)


class LastRecord:
    """A file with the position of the newest record. If the database does not have this record, the record was lost.

    So the file is written after the commit that stores a record, and before the commit that deletes the record. Each
    write replaces the same few bytes in place. So it works on a full disk, and the end of the process cannot cut it in
    half. Like a commit, a write does not wait for the disk. After a power cut, the file may name a lost record.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        self._place = _NONE

    def check_and_update(self, is_new: bool) -> None:
        """Warn if the database lacks the file's record and is not new. Then update the file."""
        found = self._newest()
        self._place = self._noted()
        noted = _NONE if is_new else self._place
        if noted.commit_log_offset > found.commit_log_offset:
            log.warning(
                "broker.messages_missing",
                path=str(self._path),
                last_stored=_time(noted),
                last_found=_time(found) if found != _NONE else None,
                bytes=noted.commit_log_offset - max(found.commit_log_offset, 0),
            )
        self._write(found)

    def before_deletion(self) -> None:
        """Update the file if its record was deleted. Call this within the transaction that deleted records."""
        self._write(min(self._place, self._newest()))

    def after_commit(self, appended: Sequence[RecordRow], *, has_deleted: bool) -> None:
        """Write the newest record's position to the file. Call this after a transaction that changed records."""
        if has_deleted:
            with contextlib.suppress(sqlite3.Error):  # the transaction is committed already
                self._write(self._newest())
        elif appended:
            self._write(RecordPlace(appended[-1].commit_log_offset, appended[-1].store_timestamp))

    def close(self) -> None:
        os.close(self._file)

    def _newest(self) -> RecordPlace:
        row = self._connection.execute(_NEWEST).fetchone()
        return _NONE if row is None else RecordPlace(*row)

    def _noted(self) -> RecordPlace:
        try:
            return RecordPlace(*map(int, os.pread(self._file, 100, 0).split()))
        except (TypeError, ValueError):  # the file is empty or damaged
            return _NONE

    def _write(self, place: RecordPlace) -> None:
        if place == self._place:
            return
        self._place = place
        with contextlib.suppress(OSError):  # the file only serves a warning; database errors are reported elsewhere
            os.pwrite(self._file, b"%020d %020d\n" % place, 0)


def _time(place: RecordPlace) -> str:
    return datetime.fromtimestamp(place.store_timestamp / 1000, UTC).isoformat(timespec="seconds")


FILE_MODE: Final = 0o640  # other users must not read messages
APPLICATION_ID: Final = 0x524D5144  # "RMQD"
SCHEMA_VERSION: Final = 1

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


def open_database(path: Path) -> tuple[sqlite3.Connection, LastRecord]:
    """Open and lock the database at `path`, and the LastRecord file next to it. Missing files are created.

    Raises StorageError.
    """
    try:
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT, FILE_MODE))  # SQLite gives its WAL the mode of the database
        is_new = not path.stat().st_size
        path.chmod(path.stat().st_mode & FILE_MODE)
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"the data dir {path.parent} cannot be used: {error}") from error
    try:
        _prepare(connection, path)
        last = LastRecord(path.with_name(FILE_NAME), connection)
        last.check_and_update(is_new)
    except sqlite3.Error as error:
        connection.close()
        raise storage_error(path, error) from error
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
        raise StorageError(f"{path} is not a database of rmqd; choose another data dir")
    if version > SCHEMA_VERSION:
        raise StorageError(f"{path} needs a newer rmqd: its schema is {version}; expected at most {SCHEMA_VERSION}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")  # few pages (of 4 KiB), because a checkpoint waits for disk
    connection.execute("BEGIN IMMEDIATE")  # acquires the lock, which is released when the connection is closed
    connection.execute("COMMIT")
    if not tables:
        connection.executescript(_SCHEMA)


def storage_error(path: Path, error: sqlite3.Error) -> StorageError:
    """Return the StorageError that explains a database error to the operator."""
    # Errors of Python's sqlite3 module, such as for text that is not UTF-8, have no code. rmqd never wrote such text,
    # so the database is damaged.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(
            f"the data dir {path.parent} is in use by another broker; stop it, or choose another folder"
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StorageError(f"{path} is damaged, or not a database ({error}); move it away to start with an empty one")
    return StorageError(f"{path} cannot be used: {error}")
