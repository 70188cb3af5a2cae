"""Marks with connections and sessions of SQLAlchemy 2, on any database that it supports."""

from __future__ import annotations

import contextlib
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Column, Connection, DateTime, Engine, MetaData, String, Table, bindparam, func, insert, select
from sqlalchemy.engine import NestedTransaction
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, SessionTransaction

from rmqd.handler_api.batch import AlreadyHandled
from rmqd.handler_api.once.once_mark import TABLE, HandledMark

_LONGEST: Final = 255  # characters: three such columns with 4 bytes per character fill a MySQL key
_HANDLED: Final = Table(
    TABLE,
    MetaData(),
    Column("consumer_group", String(_LONGEST), primary_key=True),
    Column("topic", String(_LONGEST), primary_key=True),
    Column("msg_id", String(_LONGEST), primary_key=True),
    Column("handled_at", DateTime, nullable=False, server_default=func.now()),
)
_NAMES: Final = ("consumer_group", "topic", "msg_id")
_FORMER: Final = select(func.count()).where(*(_HANDLED.c[name] == bindparam(name) for name in _NAMES))
_seen: WeakSet[Engine] = WeakSet()
"""The engines whose table this process has found."""


class SQLAlchemyOnce:
    """A block in a savepoint of the open transaction. The caller commits that transaction as usual."""

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
        _make_table(direct)  # outside the savepoint: its errors do not concern the mark
        self._savepoint = connection.begin_nested()
        try:
            direct.execute(insert(_HANDLED).values(dict(zip(_NAMES, self._mark.row, strict=True))))
            # after the insert: in SQLite, a transaction that starts with a read cannot always write later
            former = self._mark.former_row  # equals `row` outside of a group, for example in a handler's tests
            is_known = former != self._mark.row and direct.scalar(_FORMER, dict(zip(_NAMES, former, strict=True)))
        except IntegrityError:
            is_known = True
        except BaseException:
            _seen.discard(direct.engine)  # the table may have been dropped: the next attempt looks for it
            # if SQLite has ended the transaction, `raise` gives the reason, and this error does not
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


def _make_table(connection: Connection) -> None:
    """Create the table if it is missing. The creation may be rolled back, so the next attempt looks for the table
    again.

    If two transactions create it at once, the second fails when the first is committed, and then finds the table.
    """
    if connection.engine in _seen:
        return
    if connection.dialect.has_table(connection, TABLE):
        _seen.add(connection.engine)
        return
    try:
        with connection.begin_nested():
            _HANDLED.create(connection, checkfirst=False)
    except DBAPIError:
        if not connection.dialect.has_table(connection, TABLE):
            raise
