"""Marks by connections and sessions of SQLAlchemy 2, on any database that it knows."""

from __future__ import annotations

import contextlib
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Column, Connection, DateTime, Engine, MetaData, String, Table, bindparam, func, insert, select
from sqlalchemy.engine import NestedTransaction
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, SessionTransaction

from rmqd.handler_api import AlreadyHandled
from rmqd.once.mark import TABLE, Mark

_LONGEST: Final = 255  # three of them in four bytes a character are as long as a key of MySQL may be
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
"""Where this process has seen the table."""


class SQLAlchemyOnce:
    """A block in a savepoint of the transaction that is open; the caller commits that as usual."""

    def __init__(self, mark: Mark, connection: Any) -> None:
        self._mark = mark
        self._connection = connection
        self._savepoint: NestedTransaction | SessionTransaction | None = None

    def __enter__(self) -> None:
        if not isinstance(self._connection, Connection | Session):
            raise TypeError("message.once: an asynchronous connection of SQLAlchemy is for `async with`")
        self._begin(self._connection)

    def __exit__(self, *raised: Any) -> None:
        self._end(raised[0] is None)

    async def __aenter__(self) -> None:
        if not hasattr(self._connection, "run_sync"):
            raise TypeError("message.once: a synchronous connection of SQLAlchemy is for `with`, without `async`")
        await self._connection.run_sync(self._begin)

    async def __aexit__(self, *raised: Any) -> None:
        await self._connection.run_sync(lambda _: self._end(raised[0] is None))

    def _begin(self, connection: Connection | Session) -> None:
        direct = connection.connection() if isinstance(connection, Session) else connection
        _make_table(direct)  # outside of what follows: its errors are none of the mark's
        self._savepoint = connection.begin_nested()
        try:
            direct.execute(insert(_HANDLED).values(dict(zip(_NAMES, self._mark.row, strict=True))))
            # after the insert: a transaction of SQLite that begins with a read may not write later
            former = self._mark.former_row  # the same outside of a group, as in a test of a handler
            is_known = former != self._mark.row and direct.scalar(_FORMER, dict(zip(_NAMES, former, strict=True)))
        except IntegrityError:
            is_known = True
        except BaseException:
            _seen.discard(direct.engine)  # the table may have been dropped: the next attempt looks for it
            with contextlib.suppress(DBAPIError):  # where SQLite ended the transaction, the error says why, not this
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
    """Make the table where it is missing. One that is made here may be rolled back, so that it is looked for again.

    Of two that make it at once the second fails when the first is committed, and finds it then.
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
