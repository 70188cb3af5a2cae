"""How SQLAlchemy is to connect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from rmqd_handlers.postgresql.connecting import BACKEND, CONNECT_SECONDS, PARAMETERS

from .values import json_serializer

WAIT_SECONDS: Final = 5.0  # for a connection of the pool, of which there is one for each thread

_MYSQL: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": 60,  # above the 50 s that a row's lock is waited for
    "write_timeout": 60,
    "init_command": "SET time_zone = '+00:00'",  # a TIMESTAMP is in the session's zone, and ours are in UTC
}
CONNECT_ARGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "psycopg": PARAMETERS,
    "pymysql": _MYSQL,
    "mysqldb": _MYSQL,
    "pysqlite": {"timeout": CONNECT_SECONDS},  # for the lock of another writer
}
"""What drivers are told, by SQLAlchemy's names of them, beside the option `connect_args`."""
_IN_ERROR: Final = 3  # libpq's PQTRANS_INERROR
KNOWS_JSON: Final = ("sqlite", "postgresql", "mysql", "mariadb", "mssql")


class UrlError(Exception):
    """The URL names no database that this handler can write to."""


def make_engine(url: str, connect_args: Mapping[str, Any], max_connections: int) -> Engine:
    """An engine that connects when it is first asked to. Raises UrlError."""
    try:
        parsed = make_url(url)
        dialect = parsed.get_dialect()
    except NoSuchModuleError as error:
        raise UrlError(f"{error}; is the package of this dialect installed?") from None
    except ArgumentError:  # its text may have the URL
        raise UrlError("the url is none; accepted: DIALECT+DRIVER://user:password@host/database") from None
    if dialect.is_async:
        raise UrlError(
            f"{dialect.driver} is an asynchronous driver; accepted are others, such as postgresql+psycopg, "
            "mysql+pymysql or sqlite"
        )
    settings: dict[str, Any] = {"json_serializer": json_serializer} if dialect.name in KNOWS_JSON else {}
    if parsed.database in (None, "", ":memory:") and dialect.name == "sqlite":
        raise UrlError("a SQLite in memory is gone with its connection; accepted: sqlite:////path/to/file")
    try:
        engine = create_engine(
            parsed,
            connect_args={**CONNECT_ARGS.get(dialect.driver, {}), **connect_args},
            pool_size=max_connections,
            max_overflow=1,  # for what cancels a statement; the threads are as many as the pool's connections
            pool_timeout=WAIT_SECONDS,
            hide_parameters=True,
            **settings,
        )
    except ModuleNotFoundError as error:
        raise UrlError(
            f"the driver {dialect.driver} is not installed: {error}; install it, or name another one in the url, such "
            "as mysql+pymysql"
        ) from None
    if dialect.driver == "pysqlite":
        _begin_by_ourselves(engine)
    if dialect.driver == "psycopg":
        event.listen(engine, "connect", _prepare_unless_pooled)
    return engine


def _prepare_unless_pooled(connection: Any, _: object) -> None:
    """A pool in front of the database hands out a session of others, and mixes up their prepared statements."""
    with connection.transaction():
        if connection.execute(BACKEND).fetchone() != (connection.info.backend_pid,):
            connection.prepare_threshold = None


def has_ended(connection: Connection) -> bool:
    """Whether the transaction that is to be committed is none: the database rolled it back, or can only do so.

    SQLite does by itself, at a full disk or RAISE(ROLLBACK): what follows would be committed statement by statement.
    PostgreSQL takes COMMIT for ROLLBACK after an error. Of other databases the drivers do not tell.
    """
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.driver == "pysqlite":
        return not driver.in_transaction
    if connection.dialect.driver in ("psycopg", "psycopg2"):
        return bool(driver.info.transaction_status == _IN_ERROR)
    return False


def _begin_by_ourselves(engine: Engine) -> None:
    """Have SQLite's transactions begin where SQLAlchemy says so, and take the lock of the only writer at once.

    Its driver begins one at the first INSERT only: savepoints before that would be transactions of their own. One that
    reads first, and then wants to write, fails where another one has written meanwhile.
    """

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
