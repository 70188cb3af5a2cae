"""Marks of `message.once`, written with connections and sessions of SQLAlchemy 2, in any database that it supports."""

from __future__ import annotations

import contextlib
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Column, Connection, DateTime, Engine, MetaData, String, Table, bindparam, func, insert, select
from sqlalchemy.dialects.mysql import VARCHAR
from sqlalchemy.engine import NestedTransaction
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, SessionTransaction

from rmqd.handler_api.batch import AlreadyHandled
from rmqd.handler_api.once.once_mark import TABLE, HandledMark

_LONGEST: Final = 255  # characters: three such columns with 4 bytes per character fill a MySQL key
# a binary collation, because MySQL otherwise considers texts equal that differ in case or accents
_TEXT: Final = String(_LONGEST).with_variant(VARCHAR(_LONGEST, collation="utf8mb4_bin"), "mysql", "mariadb")
HANDLED: Final = Table(
    TABLE,
    MetaData(),
    Column("consumer_group", _TEXT, primary_key=True),
    Column("topic", _TEXT, primary_key=True),
    Column("msg_id", _TEXT, primary_key=True),
    Column("handled_at", DateTime, nullable=False, server_default=func.now()),
)
_NAMES: Final = ("consumer_group", "topic", "msg_id")
_STORED: Final = select(*(HANDLED.c[name] for name in _NAMES)).where(
    *(HANDLED.c[name] == bindparam(name) for name in _NAMES)
)
_seen: WeakSet[Engine] = WeakSet()
"""The engines in whose database this process has found the table."""


class SQLAlchemyOnce:
    """The context manager for SQLAlchemy: a savepoint in the transaction, which the handler commits as usual."""

    def __init__(self, mark: HandledMark, connection: Any) -> None:
        self._mark = mark
        self._connection = connection
        self._savepoint: NestedTransaction | SessionTransaction | None = None

    def __enter__(self) -> None:
        if not isinstance(self._connection, Connection | Session):
            raise TypeError("message.once: an asynchronous connection of SQLAlchemy needs `async with`")
        self._begin(self._connection)

    def __exit__(self, *raised: Any) -> None:
        self._end(raised[0] is None)

    async def __aenter__(self) -> None:
        if not hasattr(self._connection, "run_sync"):
            raise TypeError("message.once: a synchronous connection of SQLAlchemy needs `with`, without `async`")
        await self._connection.run_sync(self._begin)

    async def __aexit__(self, *raised: Any) -> None:
        await self._connection.run_sync(lambda _: self._end(raised[0] is None))

    def _begin(self, connection: Connection | Session) -> None:
        direct = connection.connection() if isinstance(connection, Session) else connection
        _make_table(direct)  # outside the savepoint, because errors of the table's creation do not concern the mark
        self._savepoint = connection.begin_nested()
        try:
            direct.execute(insert(HANDLED).values(_by_name(self._mark.row)))
            # read after the insert, because a transaction of SQLite that starts with a read cannot always write later
            former = self._mark.former_row  # equals `row` outside of a group, for example in a handler's tests
            is_known = former != self._mark.row and former in _equal_rows(direct, former)
        except IntegrityError:
            self._end(is_done=False)
            _check_case(direct, self._mark.row)
            raise AlreadyHandled(self._mark.message) from None
        except BaseException:
            _seen.discard(direct.engine)  # the table may have been dropped: the next attempt looks for it
            # if SQLite has ended the transaction, this rollback fails too, but `raise` reports the first error
            with contextlib.suppress(DBAPIError):
                self._end(is_done=False)
            raise
        if is_known:
            self._end(is_done=False)
            raise AlreadyHandled(self._mark.message)

    def _end(self, is_done: bool) -> None:
        assert self._savepoint is not None
        if is_done:
            self._savepoint.commit()
        elif self._savepoint.is_active:
            self._savepoint.rollback()


def _by_name(row: tuple[str, str, str]) -> dict[str, str]:
    return dict(zip(_NAMES, row, strict=True))


def _equal_rows(connection: Connection, row: tuple[str, str, str]) -> list[tuple[str, ...]]:
    """Return the rows that the database considers equal to this one."""
    return [tuple(found) for found in connection.execute(_STORED, _by_name(row))]


def _check_case(connection: Connection, row: tuple[str, str, str]) -> None:
    """Raise RuntimeError if the stored row is of another message, which the database considers equal to `row`."""
    if (found := _equal_rows(connection, row)) and row not in found:
        raise RuntimeError(
            f"{TABLE} compares texts without regard to case or accents, so {row} is not different from {found[0]}; "
            "give its three text columns a binary collation (utf8mb4_bin in MySQL)"
        )


def _make_table(connection: Connection) -> None:
    """Create the table if it is missing. A created table is not remembered, because its creation may be rolled back.

    If two transactions create it at once, the second one fails when the first is committed, and then finds the table.
    """
    if connection.engine in _seen:
        return
    if connection.dialect.has_table(connection, TABLE):
        _seen.add(connection.engine)
        return
    try:
        with connection.begin_nested():
            HANDLED.create(connection, checkfirst=False)
    except DBAPIError:
        if not connection.dialect.has_table(connection, TABLE):
            raise
