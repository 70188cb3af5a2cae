"""A database call, shared by the event loop and the thread that runs it: its cancellation and its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Engine

from rmqd_handlers.postgresql.connecting import CONNECT_SECONDS

_MYSQL: Final = ("pymysql", "mysqldb")


class OverError(Exception):
    """The call was abandoned, so that its exception has no receiver."""


class Work:
    """One call. The thread stores its connection, so that the event loop can cancel the running statement."""

    def __init__(self) -> None:
        self._is_over = False
        self._connection: Connection | None = None
        self._at_connection = threading.Lock()

    @contextlib.contextmanager
    def by(self, connection: Connection) -> Iterator[None]:
        """A block that uses a connection. Its end waits for a running cancellation of the connection's statement.

        Raises OverError if the call was abandoned.
        """
        self._connection = connection
        try:
            self.check()
            yield
        finally:
            with self._at_connection:
                self._connection = None

    def give_up(self) -> None:
        """Abandon the call: its thread does nothing more."""
        self._is_over = True

    def check(self) -> None:
        """Raise OverError if the call was abandoned."""
        if self._is_over:
            raise OverError

    def cancel_statement(self) -> None:
        """Cancel the running statement in the database, if there is one. Call it in a thread. Raises the driver's
        exceptions.

        If the database does not cancel it, or the driver is unknown here, the statement runs until the database
        responds.
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
    """Cancel with another connection, as MySQL and MariaDB need it."""
    with engine.connect() as connection:
        connection.exec_driver_sql(f"KILL QUERY {number}")
