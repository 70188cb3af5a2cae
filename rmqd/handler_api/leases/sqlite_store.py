"""Claims in an SQLite file that all processes of one machine may share.

Calls that arrive during a transaction share the next transaction. `confirm` returns after the confirmation is on disk.
`claim` does not wait for the disk: if the machine crashes, the owner of the claim has ended too.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from rmqd.handler_api.leases.lease_store import ClaimState, ClaimStoreError, ClaimTerms, HeldClaim, Key
from rmqd.runtime.own_threads import call_in_thread

T = TypeVar("T")

BUSY_TIMEOUT_SECONDS: Final = 5.0  # how long to wait for transactions of other processes
MAX_PURGED: Final = 10_000  # rows deleted in one call, so that other calls do not wait for long
_VERSION: Final = 0  # the table's version, which SQLite keeps in the file
_CREATE: Final = """
CREATE TABLE IF NOT EXISTS claims (
    consumer_group TEXT NOT NULL, topic TEXT NOT NULL, id TEXT NOT NULL,
    token TEXT NOT NULL, is_confirmed INTEGER NOT NULL, ends_at REAL NOT NULL,
    PRIMARY KEY (consumer_group, topic, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS claims_by_end ON claims (ends_at);
"""
_SELECT: Final = (
    "SELECT token, is_confirmed FROM claims WHERE consumer_group = ? AND topic = ? AND id = ? AND ends_at > ?"
)
_WRITE: Final = "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?)"
_MINE: Final = "consumer_group = ? AND topic = ? AND id = ? AND token = ? AND NOT is_confirmed"


@dataclass(slots=True)
class _Call:
    work: Callable[[sqlite3.Connection], Any]
    is_durable: bool
    answer: asyncio.Future[Any]


class SqliteClaims:
    """Claims in a file, which is created if it is missing."""

    def __init__(self, path: str, terms: ClaimTerms) -> None:
        self._path = Path(path)
        self._terms = terms
        self._connection: sqlite3.Connection | None = None
        self._calls: list[_Call] = []
        self._writing: asyncio.Task[None] | None = None

    async def claim(self, keys: Sequence[Key], token: str, former: Sequence[str] = ()) -> list[ClaimState]:
        return await self._do(partial(self._claim, keys, token, former or [""] * len(keys)))

    async def confirm(self, keys: Sequence[Key], token: str) -> int:
        """Write the confirmations. Returns after they are on disk."""
        return await self._do(partial(self._confirm, keys, token), is_durable=True)

    async def renew(self, held: Sequence[HeldClaim]) -> None:
        await self._do(partial(self._renew, held))

    async def release(self, held: Sequence[HeldClaim]) -> None:
        await self._do(partial(self._release, held))

    async def purge(self) -> None:
        await self._do(_purge)

    async def close(self) -> None:
        """Wait for the running transaction, and close the file."""
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        await call_in_thread(self._close)

    async def _do(self, work: Callable[[sqlite3.Connection], T], *, is_durable: bool = False) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.append(_Call(work, is_durable, answer))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write(), name="claims in SQLite")
        return await answer

    async def _write(self) -> None:
        while self._calls:
            calls, self._calls = self._calls, []
            try:
                results = await call_in_thread(partial(self._transact, calls))
            except Exception as error:  # noqa: BLE001 - passed to the callers
                failure = ClaimStoreError(f"{self._path}: {error}{_advice(error)}")
                failure.__cause__ = error
                for call in calls:
                    if not call.answer.done():
                        call.answer.set_exception(failure)
            else:
                for call, result in zip(calls, results, strict=True):
                    if not call.answer.done():
                        call.answer.set_result(result)

    def _transact(self, calls: Sequence[_Call]) -> list[Any]:
        try:
            connection = self._connect()
            # in WAL mode, only FULL waits for the disk
            connection.execute(f"PRAGMA synchronous = {'FULL' if any(one.is_durable for one in calls) else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            results = [call.work(connection) for call in calls]
            connection.execute("COMMIT")
        except BaseException:
            self._close()  # rolls back; the next call opens the path again, because the file may have been replaced
            raise
        return results

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # one thread at a time uses the connection, but not always the same thread
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None, check_same_thread=False
            )
            _use_wal(self._connection)
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version != _VERSION:
                raise ClaimStoreError(f"{self._path} was written by a newer rmqd (format {version}): run that version")
            self._connection.executescript(_CREATE)
        return self._connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _claim(
        self, keys: Sequence[Key], token: str, former: Sequence[str], connection: sqlite3.Connection
    ) -> list[ClaimState]:
        now, terms = time.time(), self._terms
        standings = []
        for (topic, name), former_topic in zip(keys, former, strict=True):
            row = connection.execute(_SELECT, (terms.group, topic, name, now)).fetchone()
            if row is None and former_topic:
                row = connection.execute(_SELECT, (terms.group, former_topic, name, now)).fetchone()
            if row is not None and row[1]:
                standings.append(ClaimState.CONFIRMED)
            elif row is not None and not row[0].startswith(terms.owner):
                standings.append(ClaimState.HELD)
            else:
                connection.execute(_WRITE, (terms.group, topic, name, token, 0, now + terms.lease_seconds))
                standings.append(ClaimState.OURS)
        return standings

    def _confirm(self, keys: Sequence[Key], token: str, connection: sqlite3.Connection) -> int:
        ends_at, group = time.time() + self._terms.keep_seconds, self._terms.group
        lost = 0
        for topic, name in keys:
            row = connection.execute(_SELECT, (group, topic, name, 0)).fetchone()
            # the same token means that a confirmation is repeated after a lost response
            lost += row is not None and row[0] != token
            connection.execute(_WRITE, (group, topic, name, token, 1, ends_at))
        return lost

    def _renew(self, held: Sequence[HeldClaim], connection: sqlite3.Connection) -> None:
        ends_at = time.time() + self._terms.lease_seconds
        rows = ((ends_at, self._terms.group, *key, token) for key, token in held)
        connection.executemany(f"UPDATE claims SET ends_at = ? WHERE {_MINE}", rows)

    def _release(self, held: Sequence[HeldClaim], connection: sqlite3.Connection) -> None:
        rows = ((self._terms.group, *key, token) for key, token in held)
        connection.executemany(f"DELETE FROM claims WHERE {_MINE}", rows)


def _advice(error: Exception) -> str:
    """Return what to do about a damaged file; empty for other errors."""
    # errors of Python's sqlite3 module, such as for text that is not UTF-8, have no code
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    is_from_file = isinstance(error, sqlite3.Error) and not isinstance(error, sqlite3.ProgrammingError)
    if not is_from_file or code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return ""
    return (
        "; the file is damaged: replace it with a good copy, or move it away. Without its records, redelivered "
        "messages are handled again"
    )


def _use_wal(connection: sqlite3.Connection) -> None:
    """Change the file to WAL mode. The file stays in this mode.

    If several processes change a new file at the same moment, SQLite refuses all but one of them immediately, despite
    the connection's timeout, because each process waits for the others to stop reading. So a refused process tries
    again.
    """
    give_up_at = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            # the low byte, because SQLite has several codes for a busy file
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
            time.sleep(0.005)
        else:
            return


def _purge(connection: sqlite3.Connection) -> None:
    rows = connection.execute(
        "SELECT consumer_group, topic, id FROM claims WHERE ends_at <= ? LIMIT ?", (time.time(), MAX_PURGED)
    ).fetchall()
    connection.executemany("DELETE FROM claims WHERE consumer_group = ? AND topic = ? AND id = ?", rows)
