"""Opens the SQLite database of a data dir, which only one process may open, and explains its errors."""

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
    """Open and lock the database of a folder, and the last-record file next to it. Missing ones are created.

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
        raise StorageError(f"{path} is not a database of rmqd; choose another data dir")
    if version > SCHEMA_VERSION:
        raise StorageError(f"{path} is from a newer rmqd: its schema is {version}; expected at most {SCHEMA_VERSION}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")  # pages of 4 KiB: each checkpoint waits for the disk
    connection.execute("BEGIN IMMEDIATE")  # takes the lock, which is held until the end
    connection.execute("COMMIT")
    if not tables:
        connection.executescript(_SCHEMA)


def unusable(path: Path, error: sqlite3.Error) -> StorageError:
    """Return the error for operators that an error of the database stands for."""
    # Python's own errors, such as for text that is not UTF-8, have no code. rmqd never wrote such text, so it is
    # damage.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(
            f"the data dir {path.parent} is in use by another broker; stop it, or choose another folder"
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StorageError(f"{path} is damaged, or not a database ({error}); move it away to start with an empty one")
    return StorageError(f"{path} cannot be used: {error}")
