"""The handler `postgresql`: a batch is one transaction."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rmqd import Batch, Message
from rmqd_handlers.away import (
    ON_INVALID,
    RETRY_FOR,
    ChangedError,
    OnInvalid,
    acknowledge_written,
    adopt,
    refuse,
    trial_of,
    try_again,
)
from rmqd_handlers.faults import ErrorCause, error_text, fault_of, is_standby, is_unprepared, may_pass
from rmqd_handlers.message_values import MessageValue
from rmqd_handlers.option_kinds import BACKEND, CONNECT_SECONDS, DurationSeconds, LibpqUrl, conninfo_of, need
from rmqd_handlers.postgresql.table import Mode, Table, TableError
from rmqd_handlers.rows import COLUMNS_TEXT, KEY, MAX_CONNECTIONS, TABLE_PATTERN, VERSION, check_key, rows_of

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

# for a connection of the pool, if it has a free slot: waiting longer means that the database is unavailable
WAIT_SECONDS = 1.0

Row = tuple[str | None, ...]
Rows = list[tuple[Message, Row]]


def _quotes_no_row(record: logging.LogRecord) -> bool:
    """Return whether a log record can be kept: psycopg's warnings quote the server's response to a row, which contains
    the row.
    """
    return record.levelno >= logging.ERROR


class PostgreSql:
    """Writes each message as a row of a table. With a unique key, a redelivered message adds no second row."""

    calls_limited_by: ClassVar[str] = "max_connections"

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid", validate_default=True)

        url: LibpqUrl = Field(
            description="the database: postgresql://user:password@host/database, or libpq's keywords; "
            "several hosts with target_session_attrs=read-write follow a failover"
        )
        table: str = Field(description="the table, which must exist: orders, or shop.orders", pattern=TABLE_PATTERN)
        columns: Annotated[dict[str, MessageValue], Field(min_length=1)] = Field(description=COLUMNS_TEXT)
        mode: Mode = Field(
            "insert",
            description="insert; upsert, which replaces the row with the same key; or copy, which inserts with COPY: "
            "faster for large batches",
        )
        key: list[str] = KEY
        version: str | None = VERSION
        on_invalid: OnInvalid = ON_INVALID
        max_connections: int = MAX_CONNECTIONS
        retry_for: DurationSeconds = RETRY_FOR

        @model_validator(mode="after")
        def _fit(self) -> Self:
            check_key(self.columns, self.mode, self.key, self.version)
            return self

    def __init__(self, options: Options) -> None:
        need("psycopg_pool", "postgresql")
        self._options = options
        self._table: Table
        self._pool: AsyncConnectionPool[AsyncConnection[Any]]
        self._slots = asyncio.Semaphore(options.max_connections)
        self._prepares = True  # whether statements are prepared; a pool in front of the database may mix them up
        self._is_table_doubted = False

    async def start(self) -> None:
        """Look the table up now: a wrong name, or an unavailable database, fails the start instead of each message."""
        from psycopg import AsyncConnection
        from psycopg_pool import AsyncConnectionPool

        logging.getLogger("psycopg").addFilter(_quotes_no_row)
        one = self._options
        conninfo = conninfo_of(one.url.get_secret_value())
        async with await AsyncConnection.connect(conninfo) as connection:
            self._table = await Table.look_up(connection, one.table, one.columns, one.mode, one.key, one.version)
            self._prepares = await (await connection.execute(BACKEND)).fetchone() == (connection.info.backend_pid,)
        self._pool = AsyncConnectionPool(
            conninfo,
            min_size=1,
            max_size=one.max_connections,
            open=False,
            name="rmqd",
            timeout=WAIT_SECONDS,
            reconnect_timeout=CONNECT_SECONDS,  # then the next batch tries again, instead of waiting for a long backoff
        )
        await self._pool.open()

    async def stop(self) -> None:
        await self._pool.close()

    async def handle(self, batch: Batch) -> None:
        from psycopg import Error

        retry_for = self._options.retry_for
        await try_again(lambda: self._write(batch), (Error, TableError), retry_for, "postgresql", may_pass)
        acknowledge_written(batch)

    async def _write(self, batch: Batch) -> None:
        """Raises TableError, and the driver's error classes with texts that contain no values."""
        from psycopg import Error

        table, trial = self._table, trial_of(batch)
        parts = {column.name: column.text for column in table.columns}
        rows = rows_of(trial, parts, table.key, self._options.on_invalid)
        try:
            async with self._slots, self._pool.connection() as connection:
                if not self._prepares:
                    connection.prepare_threshold = None
                if self._is_table_doubted or trial.decisions():
                    await self._check_table(connection, table)
                if rows:
                    await self._write_by(connection, table, trial, rows)
        except Error as error:
            self._is_table_doubted = True
            self._prepares = self._prepares and not is_unprepared(error)
            text = error_text(error, table.names, (value for _, row in rows for value in row))
            raise type(error)(text) from None
        adopt(batch, trial)

    async def _check_table(self, connection: AsyncConnection[Any], read: Table) -> None:
        """Read the table again after a refused value or statement: it may accept them now.

        Raises TableError, and ChangedError if it differs from `read`.
        """
        one = self._options
        self._is_table_doubted = True
        async with connection.transaction():
            self._table = await Table.look_up(connection, one.table, one.columns, one.mode, one.key, one.version)
        self._is_table_doubted = False
        if self._table != read:
            raise ChangedError

    async def _write_by(self, connection: AsyncConnection[Any], table: Table, batch: Batch, rows: Rows) -> None:
        from psycopg.errors import DatabaseError

        try:
            await self._write_all(connection, table, [row for _, row in rows])
        except DatabaseError as error:
            if is_standby(error):
                await connection.close()  # the pool replaces it with a connection to the new primary
            if fault_of(error, table.written) is ErrorCause.COUNTERPART:
                raise
            await self._write_each(connection, table, batch, rows)

    async def _write_all(self, connection: AsyncConnection[Any], table: Table, rows: list[Row]) -> None:
        async with connection.transaction(), connection.cursor() as cursor:
            if table.mode != "copy":
                await cursor.executemany(table.insert(), rows)
                return
            if table.stages:
                await cursor.execute(table.make_stage())
            async with cursor.copy(table.copy()) as copy:
                for row in rows:
                    await copy.write_row(row)
            if table.stages:
                await cursor.execute(table.empty_stage())

    async def _write_each(self, connection: AsyncConnection[Any], table: Table, batch: Batch, rows: Rows) -> None:
        """Write the rows that the database accepts in one transaction, and decide about the refused ones."""
        from psycopg.errors import DatabaseError

        refused: list[tuple[Message, Row, Exception]] = []
        async with connection.transaction():
            # so that a deferred constraint refuses only its row
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for message, row in rows:
                try:
                    async with connection.transaction():
                        await connection.execute(table.insert(), row)
                except DatabaseError as error:
                    if fault_of(error, table.written) is ErrorCause.COUNTERPART:
                        raise
                    refused.append((message, row, error))
            if refused:
                await self._check_table(connection, table)
        for message, row, why in refused:
            reason = error_text(why, table.names, row)
            if fault_of(why, table.written) is ErrorCause.REFERENCE:
                batch.retry(message, reason=reason)  # the row that it refers to may follow
            else:
                refuse(batch, message, reason, self._options.on_invalid)
