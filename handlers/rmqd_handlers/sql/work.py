"""A call of the database, as the event loop and the thread that does it know it: who gives it up, and how it ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Engine

from rmqd_handlers.postgresql.connecting import CONNECT_SECONDS

_MYSQL: Final = ("pymysql", "mysqldb")


class OverError(Exception):
    """The call was given up, and nobody is to hear of it."""


class Work:
    """One call. The thread notes its connection; whoever gives it up may have its statement cancelled by that."""

    def __init__(self) -> None:
        self._is_over = False
        self._connection: Connection | None = None
        self._at_connection = threading.Lock()

    @contextlib.contextmanager
    def by(self, connection: Connection) -> Iterator[None]:
        """A block that uses a connection. It ends once nobody is about to cancel what the connection does.

        Raises OverError where the call was given up.
        """
        self._connection = connection
        try:
            self.check()
            yield
        finally:
            with self._at_connection:
                self._connection = None

    def give_up(self) -> None:
        """Have the thread do nothing more."""
        self._is_over = True

    def check(self) -> None:
        """Raises OverError where the call was given up."""
        if self._is_over:
            raise OverError

    def cancel_statement(self) -> None:
        """Have the database cancel the statement that is under way, if any is; in a thread. Raises what drivers raise.

        One that it does not cancel, or of a driver that is not known here, goes on until the database answers.
        """
        with self._at_connection:
            if self._connection is not None:
                _cancel(self._connection)


def _cancel(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    name = connection.dialect.driver
    if name == "psycopg":
        driver.cancel_safe(timeout=CONNECT_SECONDS)
    elif name == "psycopg2":
        driver.cancel()
    elif name == "pysqlite":
        driver.interrupt()
    elif name in _MYSQL:
        _kill_query(connection.engine, driver.thread_id())


def _kill_query(engine: Engine, number: int) -> None:
    """MySQL and MariaDB are asked by another connection."""
    with engine.connect() as connection:
        connection.exec_driver_sql(f"KILL QUERY {number}")
