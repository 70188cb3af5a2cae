"""Writes to a database in threads, because drivers block, and cancels running statements."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine

from rmqd import AlreadyHandled, Message
from rmqd_handlers.away import CounterpartUnavailableError
from rmqd_handlers.faults import ErrorCause, connection_error_text, error_text
from rmqd_handlers.option_kinds import BACKEND_PID, CONNECT_SECONDS
from rmqd_handlers.rows import RefusedRow, Row, Rows, RowsRefusedError, UnwrittenOutcome
from rmqd_handlers.sql.engine import fault_of, has_ended, is_of_connection, is_temporary, make_engine
from rmqd_handlers.sql.target import RowTarget

logger = logging.getLogger(__name__)

_MYSQL: Final = ("pymysql", "mysqldb")


class CallAbandonedError(Exception):
    """Raised in the thread of an abandoned call, to end it. No caller receives this exception."""


class DatabaseCall:
    """One call in a thread. It stores the thread's connection, so that the running statement can be cancelled."""

    def __init__(self) -> None:
        self._is_over = False
        self._connection: Connection | None = None
        self._at_connection = threading.Lock()

    @contextlib.contextmanager
    def use_connection(self, connection: Connection) -> Iterator[None]:
        """Use a connection in the block. The end of the block waits for a running `cancel_statement`.

        Raises CallAbandonedError if the call was abandoned.
        """
        self._connection = connection
        try:
            self.check()
            yield
        finally:
            with self._at_connection:
                self._connection = None

    def give_up(self) -> None:
        """Abandon the call. Its thread ends at the next `check`."""
        self._is_over = True

    def check(self) -> None:
        """Raise CallAbandonedError if the call was abandoned."""
        if self._is_over:
            raise CallAbandonedError

    def cancel_statement(self) -> None:
        """Cancel the running statement in the database, if there is one. Blocks, so call it in a thread.

        If the driver is unknown, or MySQL does not cancel the statement, it runs until the database responds.
        """
        try:
            with self._at_connection:
                if self._connection is not None:
                    _cancel(self._connection)
        except Exception as error:  # noqa: BLE001  any exception of a driver
            logger.warning("sql.statement_not_cancelled", extra={"error": connection_error_text(error)})


def _cancel(connection: Connection) -> None:
    driver: Any = connection.connection.dbapi_connection
    name = connection.dialect.driver
    if name == "psycopg":
        _cancel_or_cut(driver, driver.cancel_safe)
    elif name == "psycopg2":
        _cancel_or_cut(driver, partial(_cancel_process, connection.engine, driver.info.backend_pid))
    elif name == "pysqlite":
        driver.interrupt()
    elif name in _MYSQL:
        with connection.engine.connect() as other:
            other.exec_driver_sql(f"KILL QUERY {driver.thread_id()}")


def _cancel_process(engine: Engine, process: int) -> None:
    """Cancel a statement with SQL, because psycopg2's `cancel` blocks all threads until the server responds."""
    with engine.connect() as other:
        driver: Any = other.connection.dbapi_connection
        if other.exec_driver_sql(BACKEND_PID).scalar() != driver.info.backend_pid:
            raise CounterpartUnavailableError("cannot cancel the statement, because a pooler hides its process")
        other.exec_driver_sql(f"SELECT pg_cancel_backend({process})")


def _cancel_or_cut(driver: Any, cancel: Callable[[], None]) -> None:
    """Cancel a statement of PostgreSQL. If that fails or takes too long, shut the socket down, so that the call fails.

    Before libpq 17, `cancel_safe` waits for the server without a limit.
    """
    ended = Future[None]()

    def run() -> None:
        try:
            cancel()
            ended.set_result(None)
        except Exception as error:  # noqa: BLE001  any exception of a driver
            ended.set_exception(error)

    threading.Thread(target=run, name="cancel", daemon=True).start()
    try:
        ended.result(CONNECT_SECONDS)
    except Exception:
        with socket.socket(fileno=os.dup(driver.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        raise


T = TypeVar("T")


class _EndedError(Exception):
    """The database ended the whole transaction at one row."""

    def __init__(self, refused: RefusedRow) -> None:
        super().__init__(refused.why)
        self.refused = refused


class Database:
    """The database at a URL, used with a thread for each connection."""

    def __init__(self, url: str, connect_args: Mapping[str, Any], max_connections: int, *, once: bool) -> None:
        """Does not connect yet. Raises UrlError."""
        self._engine = make_engine(url, connect_args, max_connections)
        self._threads = ThreadPoolExecutor(max_connections, thread_name_prefix="rmqd-sql")
        self._cancelling = ThreadPoolExecutor(max_connections, thread_name_prefix="rmqd-sql-cancel")
        self._once = once
        self._is_closed = False

    async def query(self, find: Callable[[Connection], T]) -> T:
        def by_connection() -> T:
            with self._engine.connect() as connection:
                return find(connection)

        return await self._in_thread(by_connection)

    async def write(self, target: RowTarget, rows: Rows) -> UnwrittenOutcome:
        """Write the rows in one transaction. Raises AwayError, or RowsRefusedError if they cannot be committed."""
        work = DatabaseCall()
        try:
            return await self._in_thread(lambda: self._write(target, rows, work))
        except asyncio.CancelledError:  # the thread still works: it must not commit, nor keep its connection
            work.give_up()
            self._cancelling.submit(work.cancel_statement)
            raise

    async def close(self) -> None:
        """Close idle connections. A connection in use is closed later, when its thread has finished.

        Waits up to `CONNECT_SECONDS` for running cancellations, because the process may end afterwards.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._is_closed = True
        await asyncio.to_thread(self._close_idle)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.to_thread(self._cancelling.shutdown)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        # in a copy of the context, because message.once reads the group from a context variable
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, self._to_its_end, call)

    def _to_its_end(self, call: Callable[[], T]) -> T:
        """Make a call in this thread. If `close` was called meanwhile, close the connection that the call has returned.

        This also closes the connection that cancelled the call's statement: the cancellation has ended by then.
        """
        try:
            return call()
        finally:  # the call has returned its connection to the pool, so this method or `close` closes it
            if self._is_closed:
                self._close_idle()

    def _close_idle(self) -> None:
        # not the engine's dispose, which replaces the pool: connections in use return to the old pool
        self._engine.pool.dispose()

    def _write(self, target: RowTarget, rows: Rows, work: DatabaseCall) -> UnwrittenOutcome:
        """Write all rows in one statement, else row by row in one transaction, else each row in its own transaction."""
        if not self._once and self._write_all(target, rows, work):
            return UnwrittenOutcome()
        try:
            return self._write_rows(target, rows, work)
        except (_EndedError, RowsRefusedError):
            return self._write_each(target, rows, work)

    def _write_all(self, target: RowTarget, rows: Rows, work: DatabaseCall) -> bool:
        """Write all rows in one statement. Returns False if the database refuses it, and nothing was written."""
        with contextlib.suppress(RowsRefusedError), self._transaction(target, rows, work) as connection:
            connection.execute(target.statement, [_parameters(target, row) for _, row in rows])
            return True
        return False

    def _write_rows(self, target: RowTarget, rows: Rows, work: DatabaseCall) -> UnwrittenOutcome:
        """Write row by row in one transaction. If this raises an error, nothing was written."""
        written = UnwrittenOutcome()
        with self._transaction(target, rows, work) as connection:
            # Without `once`, PostgreSQL has refused all rows together. A deferred constraint may be violated: check it
            # at each row, so that only the row that violates it is refused.
            if connection.dialect.name == "postgresql" and not self._once:
                connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
            for message, row in rows:
                work.check()
                self._write_one(connection, target, message, row, written)
        return written

    def _write_each(self, target: RowTarget, rows: Rows, work: DatabaseCall) -> UnwrittenOutcome:
        """Write each row in its own transaction, so that a row that ends its transaction does not affect other rows."""
        together = UnwrittenOutcome()
        for message, row in rows:
            try:
                written = self._write_rows(target, [(message, row)], work)
            except _EndedError as error:
                together.refused.append(error.refused)
            except RowsRefusedError as error:
                together.refused.append(RefusedRow(message, error.fault, str(error)))
            else:
                together.refused.extend(written.refused)
                together.handled_before.extend(written.handled_before)
        return together

    @contextlib.contextmanager
    def _transaction(self, target: RowTarget, rows: Rows, work: DatabaseCall) -> Iterator[Connection]:
        """Open a transaction for these rows. Raises AwayError or RowsRefusedError, whose texts contain no values."""
        work.check()
        try:
            connection = self._engine.connect()
        except Exception as error:  # noqa: BLE001  any exception of a driver
            raise CounterpartUnavailableError(connection_error_text(error)) from None
        with connection:
            try:
                with work.use_connection(connection), connection.begin():
                    yield connection
                    work.check()
                    _check_committable(connection)
            except (_EndedError, CallAbandonedError, RowsRefusedError):
                raise
            except Exception as error:  # noqa: BLE001  `fault_of` decides about any exception
                fault = fault_of(error, _written_columns(target, rows))
                text = error_text(error, target.names, (value for _, row in rows for value in row))
                if is_of_connection(error):
                    connection.invalidate()
                if fault is ErrorCause.COUNTERPART and is_temporary(error):
                    raise CounterpartUnavailableError(text) from None
                raise RowsRefusedError(text, fault) from None

    def _write_one(
        self, connection: Connection, target: RowTarget, message: Message, row: Row, written: UnwrittenOutcome
    ) -> None:
        """Write a row in a savepoint. Raises errors that concern the whole transaction, so that it is rolled back."""
        block = message.once(connection) if self._once else connection.begin_nested()
        of_row: Exception | None = None
        try:
            with block:
                try:
                    connection.execute(target.statement, _parameters(target, row))
                except Exception as error:
                    of_row = error
                    raise
        except AlreadyHandled as error:
            written.handled_before.append(error)
        except Exception as error:
            if of_row is None:  # an error of the mark or the savepoint
                raise
            fault = fault_of(of_row, _written_columns(target, [(message, row)]))
            if fault is ErrorCause.COUNTERPART and is_temporary(of_row):
                raise of_row from None
            refused = RefusedRow(message, fault, error_text(of_row, target.names, row))
            # the database has ended the savepoint, so it cannot be rolled back
            if error is not of_row or has_ended(connection):
                raise _EndedError(refused) from None
            written.refused.append(refused)


def _check_committable(connection: Connection) -> None:
    if has_ended(connection):  # a COMMIT would then commit nothing, and some drivers do not report that
        raise RowsRefusedError("the transaction ended before its COMMIT, so nothing was written")


def _parameters(target: RowTarget, row: Row) -> dict[str, Any]:
    return dict(zip(target.parts, row, strict=True))


def _written_columns(target: RowTarget, rows: Rows) -> Sequence[str] | None:
    """Return the columns that the rows set. A statement's columns are unknown: None, or () if no value is NULL."""
    if target.kinds:
        return target.names
    return None if any(value is None for _, row in rows for value in row) else ()
