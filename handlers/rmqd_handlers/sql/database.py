"""The connections to a database. Its drivers block, so that each has a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection

from rmqd import AlreadyHandled, Message
from rmqd_handlers.away import AwayError

from .engine import make_engine
from .errors import Kind, kind_of, told, told_of_connecting
from .target import Target

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = Sequence[tuple[Message, Row]]


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that was not written."""

    message: Message
    kind: Kind
    why: str


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the rows of a batch: those that are not named were written."""

    refused: list[Refused] = field(default_factory=list)
    handled_before: list[AlreadyHandled] = field(default_factory=list)


class RefusedError(Exception):
    """The database refused a batch, and it is not known that a row is at fault."""


class Database:
    """A database, by its URL."""

    def __init__(self, url: str, connect_args: Mapping[str, Any], max_connections: int, *, once: bool) -> None:
        """Connects to nothing yet. Raises UrlError."""
        self._engine = make_engine(url, connect_args, max_connections)
        self._threads = ThreadPoolExecutor(max_connections, thread_name_prefix="rmqd-sql")
        self._once = once

    async def look(self, find: Callable[[Connection], T]) -> T:
        """What is found by a connection. Raises what the driver raises."""

        def by_connection() -> T:
            with self._engine.connect() as connection:
                return find(connection)

        return await self._in_thread(by_connection)

    async def write(self, target: Target, rows: Rows) -> Written:
        """Write the rows in one transaction. Raises AwayError, and RefusedError where they cannot be committed."""
        return await self._in_thread(lambda: self._write(target, rows))

    async def close(self) -> None:
        """Close what is not in use; a thread that waits for its database is left to itself."""
        await asyncio.to_thread(self._engine.dispose)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        # message.once looks for its group in the context
        return await asyncio.get_running_loop().run_in_executor(self._threads, contextvars.copy_context().run, call)

    def _write(self, target: Target, rows: Rows) -> Written:
        written = Written()
        if self._once or not self._write_all(target, rows):
            with self._transaction(target, rows) as connection:
                for message, row in rows:
                    self._write_one(connection, target, message, row, written)
        return written

    def _write_all(self, target: Target, rows: Rows) -> bool:
        """Whether the database takes all of them as they are."""
        with contextlib.suppress(RefusedError), self._transaction(target, rows) as connection:
            connection.execute(target.statement, [_parameters(target, row) for _, row in rows])
            return True
        return False

    @contextlib.contextmanager
    def _transaction(self, target: Target, rows: Rows) -> Iterator[Connection]:
        """Raises AwayError and RefusedError, in place of an error whose text may have values."""
        try:
            connection = self._engine.connect()
        except Exception as error:  # noqa: BLE001  drivers' own
            raise AwayError(told_of_connecting(error)) from None
        with connection:
            try:
                with connection.begin():
                    yield connection
            except Exception as error:  # noqa: BLE001  its kind is looked up
                kind = kind_of(error)
                text = told(error, target.names, (value for _, row in rows for value in row))
                if kind is Kind.STANDBY:
                    connection.invalidate()
                raise (AwayError if kind in (Kind.AWAY, Kind.STANDBY) else RefusedError)(text) from None

    def _write_one(self, connection: Connection, target: Target, message: Message, row: Row, written: Written) -> None:
        block = message.once(connection) if self._once else connection.begin_nested()
        try:
            with block:
                connection.execute(target.statement, _parameters(target, row))
        except AlreadyHandled as error:
            written.handled_before.append(error)
        except Exception as error:
            kind = kind_of(error)
            if kind in (Kind.AWAY, Kind.STANDBY):
                raise
            written.refused.append(Refused(message, kind, told(error, target.names, row)))


def _parameters(target: Target, row: Row) -> dict[str, Any]:
    return dict(zip(target.parts, row, strict=True))
