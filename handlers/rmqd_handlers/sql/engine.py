"""Creates SQLAlchemy's engine, and classifies its errors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from rmqd_handlers import faults
from rmqd_handlers.faults import ErrorCause
from rmqd_handlers.option_kinds import BACKEND_PID, CONNECT_SECONDS, PARAMETERS
from rmqd_handlers.sql.target import json_serializer

WAIT_SECONDS: Final = 5.0  # time limit to get a connection of the pool, which has a connection for each thread

_MYSQL: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_SECONDS,
    "read_timeout": 60,  # longer than MySQL's default of 50 s to wait for the lock of a row
    "write_timeout": 60,
    "init_command": "SET time_zone = '+00:00'",  # a TIMESTAMP uses the session's time zone, and our times are in UTC
}
CONNECT_ARGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "psycopg": PARAMETERS,
    "psycopg2": PARAMETERS,
    "pymysql": _MYSQL,
    "mysqldb": _MYSQL,
    "pysqlite": {"timeout": CONNECT_SECONDS},  # how long to wait for another writer's lock
}
"""Arguments for drivers, by SQLAlchemy's driver names, in addition to the option `connect_args`."""
_IN_ERROR: Final = 3  # libpq's PQTRANS_INERROR
JSON_DIALECTS: Final = ("sqlite", "postgresql", "mysql", "mariadb", "mssql")


class UrlError(Exception):
    """The URL is not a database that this handler can write to."""


def make_engine(url: str, connect_args: Mapping[str, Any], max_connections: int) -> Engine:
    """Return an engine that connects at its first use. Raises UrlError."""
    try:
        parsed = make_url(url)
        dialect = parsed.get_dialect()
    except NoSuchModuleError as error:
        raise UrlError(f"{error}; install the package of this dialect") from None
    except ArgumentError:  # the error may contain the URL
        raise UrlError(
            "url is not a valid database URL; expected DIALECT+DRIVER://user:password@host/database"
        ) from None
    if dialect.is_async:
        raise UrlError(
            f"{dialect.driver} is an asynchronous driver; expected a synchronous one, such as postgresql+psycopg, "
            "mysql+pymysql or sqlite"
        )
    settings: dict[str, Any] = {"json_serializer": json_serializer} if dialect.name in JSON_DIALECTS else {}
    if parsed.database in (None, "", ":memory:") and dialect.name == "sqlite":
        raise UrlError("an in-memory SQLite database ends with its connection; expected sqlite:////path/to/file")
    try:
        engine = create_engine(
            parsed,
            connect_args={**CONNECT_ARGS.get(dialect.driver, {}), **connect_args},
            pool_size=max_connections,
            # one more connection to cancel a statement; there are as many threads as connections in the pool
            max_overflow=1,
            pool_timeout=WAIT_SECONDS,
            hide_parameters=True,
            **settings,
        )
    except ModuleNotFoundError as error:
        raise UrlError(
            f"the driver {dialect.driver} is not installed: {error}; install it, or use another driver in url, such "
            "as mysql+pymysql"
        ) from None
    if dialect.driver == "pysqlite":
        _begin_by_ourselves(engine)
    if dialect.driver == "psycopg":
        event.listen(engine, "connect", _prepare_unless_pooled)
    return engine


def _prepare_unless_pooled(connection: Any, _: object) -> None:
    """Disable prepared statements if a pool is in front of the server, because it mixes up its clients' statements."""
    with connection.transaction():
        if connection.execute(BACKEND_PID).fetchone() != (connection.info.backend_pid,):
            connection.prepare_threshold = None


def has_ended(connection: Connection) -> bool:
    """Return whether the transaction cannot be committed: the database has rolled it back, or will do so.

    SQLite rolls back at a full disk or RAISE(ROLLBACK), and would then commit each later statement separately.
    PostgreSQL treats COMMIT as ROLLBACK after an error. False for other databases, whose drivers do not report it.
    """
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.driver == "pysqlite":
        return not driver.in_transaction
    if connection.dialect.driver in ("psycopg", "psycopg2"):
        return bool(driver.info.transaction_status == _IN_ERROR)
    return False


def _begin_by_ourselves(engine: Engine) -> None:
    """Start SQLite's transactions when SQLAlchemy begins them, and acquire the writer's lock at once.

    The driver would start a transaction only at the first INSERT, so earlier savepoints would be separate transactions.
    The lock is needed at once, because a transaction that reads before it writes fails if another process has written.
    """

    @event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def fault_of(error: Exception, written: Collection[str] | None) -> ErrorCause:
    """Return the cause of the error of a statement or connection."""
    if isinstance(error, DBAPIError):
        return ErrorCause.COUNTERPART if error.connection_invalidated else faults.cause_of(error.orig, written)
    # values that SQLAlchemy or the driver cannot convert
    is_value = isinstance(error, StatementError | ValueError | TypeError | ArithmeticError)
    return ErrorCause.MESSAGE if is_value else ErrorCause.COUNTERPART


def is_temporary(error: Exception) -> bool:
    """Return whether an error may be temporary, so that the batch is retried in place."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or faults.is_temporary(error.orig)
    return isinstance(error, PoolTimeoutError)


def is_of_connection(error: Exception) -> bool:
    """Return whether another connection may help: the server is a standby, or a pool mixes up prepared statements."""
    return isinstance(error, DBAPIError) and (faults.is_standby(error.orig) or faults.is_unprepared(error.orig))
