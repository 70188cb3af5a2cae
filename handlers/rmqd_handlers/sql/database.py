"""The connections to a database. Its drivers block, so that each has a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection

from rmqd import AlreadyHandled, Message
from rmqd_handlers.away import AwayError
from rmqd_handlers.faults import Fault
from rmqd_handlers.postgresql.connecting import CONNECT_SECONDS

from .engine import has_ended, make_engine
from .errors import fault_of, is_of_connection, may_pass, told, told_of_connecting
from .target import Target
from .work import OverError, Work

logger = logging.getLogger(__name__)

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = Sequence[tuple[Message, Row]]


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that was not written."""

    message: Message
    fault: Fault
    why: str


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the rows of a batch: those that are not named were written."""

    refused: list[Refused] = field(default_factory=list)
    handled_before: list[AlreadyHandled] = field(default_factory=list)


class RefusedError(Exception):
    """The database refused a batch, and it is not known that a row is at fault."""

    def __init__(self, text: str, fault: Fault = Fault.COUNTERPART) -> None:
        super().__init__(text)
        self.fault = fault


class _EndedError(Exception):
    """The database ended the whole transaction at one row."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.why)
        self.refused = refused


class Database:
    """A database, by its URL."""

    def __init__(self, url: str, connect_args: Mapping[str, Any], max_connections: int, *, once: bool) -> None:
        """Connects to nothing yet. Raises UrlError."""
        self._engine = make_engine(url, connect_args, max_connections)
        self._threads = ThreadPoolExecutor(max_connections, thread_name_prefix="rmqd-sql")
        self._cancelling = ThreadPoolExecutor(max_connections, thread_name_prefix="rmqd-sql-cancel")
        self._once = once
        self._is_closed = False

    async def look(self, find: Callable[[Connection], T]) -> T:
        """What is found by a connection. Raises what the driver raises."""

        def by_connection() -> T:
            with self._engine.connect() as connection:
                return find(connection)

        return await self._in_thread(by_connection)

    async def write(self, target: Target, rows: Rows) -> Written:
        """Write the rows in one transaction. Raises AwayError, and RefusedError where they cannot be committed."""
        work = Work()
        try:
            return await self._in_thread(lambda: self._write(target, rows, work))
        except asyncio.CancelledError:  # the thread is still at work: it is not to commit, nor to keep its connection
            work.give_up()
            self._cancelling.submit(_cancel_statement, work)
            raise

    async def close(self) -> None:
        """Close each connection, now or when its thread is done with it, for which this does not wait.

        It does for cancellations, a while, as the process may end behind it.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._is_closed = True
        await asyncio.to_thread(self._close_idle)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_SECONDS):
                await asyncio.to_thread(self._cancelling.shutdown)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        # message.once looks for its group in the context
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, self._to_its_end, call)

    def _to_its_end(self, call: Callable[[], T]) -> T:
        """In a thread. What it gives back to the pool after `close` nobody else closes.

        Nor what was used to cancel its statement: that is done before the statement's connection is given back.
        """
        try:
            return call()
        finally:  # the pool has the connection by then, so that either this or `close` finds it there
            if self._is_closed:
                self._close_idle()

    def _close_idle(self) -> None:
        self._engine.pool.dispose()  # the engine's own takes a new pool: what is in use comes back to the old one

    def _write(self, target: Target, rows: Rows, work: Work) -> Written:
        """In one transaction as it is; row by row where one is refused; and each by itself where that is not enough."""
        if not self._once and self._write_all(target, rows, work):
            return Written()
        try:
            return self._write_rows(target, rows, work)
        except (_EndedError, RefusedError):
            return self._write_each(target, rows, work)

    def _write_all(self, target: Target, rows: Rows, work: Work) -> bool:
        """Whether the database takes all of them as they are."""
        with contextlib.suppress(RefusedError), self._transaction(target, rows, work) as connection:
            connection.execute(target.statement, [_parameters(target, row) for _, row in rows])
            return True
        return False

    def _write_rows(self, target: Target, rows: Rows, work: Work) -> Written:
        """In one transaction. Raises _EndedError beside what `_transaction` raises: nothing is written then."""
        written = Written()
        with self._transaction(target, rows, work) as connection:
            if connection.dialect.name == "postgresql" and not self._once:  # they were tried together before
                connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")  # a deferred one refuses its row alone
            for message, row in rows:
                work.check()
                self._write_one(connection, target, message, row, written)
        return written

    def _write_each(self, target: Target, rows: Rows, work: Work) -> Written:
        """Each row in a transaction of its own, so that one that takes its transaction along takes no other row."""
        together = Written()
        for message, row in rows:
            try:
                written = self._write_rows(target, [(message, row)], work)
            except _EndedError as error:
                together.refused.append(error.refused)
            except RefusedError as error:
                together.refused.append(Refused(message, error.fault, str(error)))
            else:
                together.refused.extend(written.refused)
                together.handled_before.extend(written.handled_before)
        return together

    @contextlib.contextmanager
    def _transaction(self, target: Target, rows: Rows, work: Work) -> Iterator[Connection]:
        """Raises AwayError and RefusedError, in place of an error whose text may have values."""
        work.check()
        try:
            connection = self._engine.connect()
        except Exception as error:  # noqa: BLE001  drivers' own
            raise AwayError(told_of_connecting(error)) from None
        with connection:
            try:
                with work.by(connection), connection.begin():
                    yield connection
                    work.check()
                    _check_committable(connection)
            except (_EndedError, OverError, RefusedError):
                raise
            except Exception as error:  # noqa: BLE001  it is looked up whose fault it is
                fault = fault_of(error, _written_columns(target, rows))
                text = told(error, target.names, (value for _, row in rows for value in row))
                if is_of_connection(error):
                    connection.invalidate()
                if fault is Fault.COUNTERPART and may_pass(error):
                    raise AwayError(text) from None
                raise RefusedError(text, fault) from None

    def _write_one(self, connection: Connection, target: Target, message: Message, row: Row, written: Written) -> None:
        """A row in a savepoint. An error that is not of the row alone leaves, so that nothing is committed."""
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
            if of_row is None:  # the mark, or the savepoint
                raise
            fault = fault_of(of_row, _written_columns(target, [(message, row)]))
            if fault is Fault.COUNTERPART and may_pass(of_row):
                raise of_row from None
            refused = Refused(message, fault, told(of_row, target.names, row))
            if error is not of_row or has_ended(connection):  # the savepoint cannot be rolled back: it is gone
                raise _EndedError(refused) from None
            written.refused.append(refused)


def _cancel_statement(work: Work) -> None:
    try:
        work.cancel_statement()
    except Exception as error:  # noqa: BLE001  drivers' own
        logger.warning("sql.statement_not_cancelled", extra={"error": told_of_connecting(error)})


def _check_committable(connection: Connection) -> None:
    if has_ended(connection):  # then a COMMIT commits nothing, and some drivers do not say so
        raise RefusedError("the transaction ended before its COMMIT: nothing of it was written")


def _parameters(target: Target, row: Row) -> dict[str, Any]:
    return dict(zip(target.parts, row, strict=True))


def _written_columns(target: Target, rows: Rows) -> Sequence[str] | None:
    """The columns that the rows set. Those of a statement are not known: any, but none if no parameter is NULL."""
    if target.kinds:
        return target.names
    return None if any(value is None for _, row in rows for value in row) else ()
