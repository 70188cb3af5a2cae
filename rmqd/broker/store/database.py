"""Opens the SQLite database of a data dir, which only one process may have open, and says why it cannot be used."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from rmqd.broker.store.last_record import FILE_NAME as LAST_RECORD_NAME
from rmqd.broker.store.last_record import LastRecord
from rmqd.errors import StorageError

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
    """Open and lock the database of a folder, and the note beside it. They are created if they do not exist.

    Raises StorageError.
    """
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
        raise unusable(path, error) from error
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


def unusable(path: Path, error: sqlite3.Error) -> StorageError:
    """What an error of the database means for whoever runs the broker."""
    # Python's own errors, such as for text that is not UTF-8, have no code: the database holds what we never wrote.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(f"the data dir {path.parent} is in use by another broker; end that one, or name another")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StorageError(f"{path} is damaged, or no database ({error}); move it away to start with an empty one")
    return StorageError(f"{path} cannot be used: {error}")
