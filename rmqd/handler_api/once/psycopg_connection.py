"""Marks of `message.once`, written with connections of psycopg 3."""

from __future__ import annotations

from typing import Any, Final

from psycopg import AsyncConnection, Connection
from psycopg.errors import UndefinedTable
from psycopg.rows import tuple_row

from rmqd.handler_api.batch import AlreadyHandled
from rmqd.handler_api.once.once_mark import TABLE, HandledMark

_EXISTS: Final = f"SELECT to_regclass('{TABLE}') IS NOT NULL"
# a lock, because concurrent attempts to create a table fail
_LOCK: Final = f"SELECT pg_advisory_xact_lock(hashtext('{TABLE}'))"
_CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (consumer_group text NOT NULL, topic text NOT NULL, msg_id text NOT NULL, "
    "handled_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (consumer_group, topic, msg_id))"
)
_INSERT: Final = (
    f"INSERT INTO {TABLE} (consumer_group, topic, msg_id) SELECT %s, %s, %s WHERE NOT EXISTS (SELECT FROM {TABLE} "
    "WHERE (consumer_group, topic, msg_id) = (%s, %s, %s)) ON CONFLICT DO NOTHING"
)
_seen: set[tuple[str, int, str, str]] = set()
"""Host, port, database and user of the connections with which this process has found the table."""


class PsycopgOnce:
    """The context manager for psycopg: a new transaction, or a savepoint if a transaction is open."""

    def __init__(self, mark: HandledMark, connection: Any) -> None:
        self._mark = mark
        self._connection: AsyncConnection[Any] | Connection[Any] = connection
        self._transaction: Any = None

    def __enter__(self) -> None:
        connection = self._connection
        if not isinstance(connection, Connection):
            raise TypeError("message.once: an AsyncConnection of psycopg needs `async with`")
        self._transaction = connection.transaction()
        self._transaction.__enter__()
        try:
            with connection.cursor(row_factory=tuple_row) as cursor:
                if self._is_new() and not _is_true(cursor.execute(_EXISTS).fetchone(), self._place):
                    cursor.execute(_LOCK)
                    cursor.execute(_CREATE)
                self._check(cursor.execute(_INSERT, (*self._mark.row, *self._mark.former_row)).rowcount)
        except BaseException as error:
            self._forget(error)
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise

    def __exit__(self, *raised: Any) -> None:
        self._transaction.__exit__(*raised)

    async def __aenter__(self) -> None:
        connection = self._connection
        if not isinstance(connection, AsyncConnection):
            raise TypeError("message.once: a Connection of psycopg needs `with`, without `async`")
        self._transaction = connection.transaction()
        await self._transaction.__aenter__()
        try:
            async with connection.cursor(row_factory=tuple_row) as cursor:
                if self._is_new() and not _is_true(await (await cursor.execute(_EXISTS)).fetchone(), self._place):
                    await cursor.execute(_LOCK)
                    await cursor.execute(_CREATE)
                self._check((await cursor.execute(_INSERT, (*self._mark.row, *self._mark.former_row))).rowcount)
        except BaseException as error:
            self._forget(error)
            await self._transaction.__aexit__(type(error), error, error.__traceback__)
            raise

    async def __aexit__(self, *raised: Any) -> None:
        await self._transaction.__aexit__(*raised)

    @property
    def _place(self) -> tuple[str, int, str, str]:
        info = self._connection.info
        return info.host, info.port, info.dbname, info.user

    def _is_new(self) -> bool:
        return self._place not in _seen

    def _forget(self, error: BaseException) -> None:
        """After UndefinedTable, make the next attempt check whether the table exists: it may have been dropped."""
        if isinstance(error, UndefinedTable):
            _seen.discard(self._place)

    def _check(self, rows: int) -> None:
        if not rows:
            raise AlreadyHandled(self._mark.message)


def _is_true(row: tuple[Any, ...] | None, place: tuple[str, int, str, str]) -> bool:
    """Return the result of `_EXISTS`, and remember the database if the table exists. A table that this attempt creates
    is not remembered, because the creation may be rolled back.
    """
    is_there = row is not None and row[0]
    if is_there:
        _seen.add(place)
    return bool(is_there)
