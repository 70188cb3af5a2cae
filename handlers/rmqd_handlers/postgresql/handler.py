"""The handler `postgresql`: a batch is one transaction.

Values are sent in PostgreSQL's text format, which the database reads by the type of the column.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rmqd.handler_api.destinations.upsert_sql import (
    TARGET_ALIAS,
    UNIQUE_KEYS,
    on_conflict_clause,
    quote_identifier,
    quote_identifiers,
)
from rmqd_handlers.away import ON_INVALID, RETRY_FOR, OnInvalid
from rmqd_handlers.faults import ErrorCause, cause_of, error_text, is_standby, is_temporary, is_unprepared
from rmqd_handlers.message_values import MessageValue, ParsedMessage, Value, as_bytes, as_json, as_text, time_of
from rmqd_handlers.option_kinds import (
    BACKEND_PID,
    CONNECT_SECONDS,
    MAX_CONNECTIONS,
    DurationSeconds,
    HandlerOptions,
    LibpqUrl,
    conninfo_of,
    option,
    require,
)
from rmqd_handlers.rows import (
    COLUMNS_TEXT,
    KEY,
    TABLE_PATTERN,
    VERSION,
    RefusedRow,
    Row,
    RowHandler,
    Rows,
    UnwrittenOutcome,
    WriteTarget,
    check_key,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

# time limit to get a connection: the pool has a free connection, so a longer wait means an unavailable database
WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PostgresqlColumn:
    """A column to write, as the database describes it."""

    name: str
    type: str
    """The SQL name of the column's base type, without a length: `numeric`, `text[]`."""
    base: str
    """The internal name of the type: `numeric`, `_text`."""
    category: str
    """PostgreSQL's category of types: A for arrays, D for dates and times, ..."""
    value: Value

    def text(self, opened: ParsedMessage) -> str | None:
        """Return the message's value as text in the format of the column's type. Raises InvalidBodyError."""
        value = self.value(opened)
        if value is None:
            return None
        if self.base in ("json", "jsonb"):
            return as_json(value)
        if self.base == "bytea":
            return f"\\x{as_bytes(value).hex()}"
        if self.category == "A" and isinstance(value, list):
            return _as_array(value)
        if self.category == "D" and self.value.is_timestamp:
            return time_of(value).isoformat()
        return as_text(value)


def _as_array(values: list[Any]) -> str:
    return "{" + ",".join(map(_as_element, values)) + "}"


def _as_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _as_array(value)
    escaped = as_text(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


Mode = Literal["insert", "upsert", "copy"]

# Parameters are cast to the column's type without its length or domain: a cast to varchar(40) would silently cut a text
# that is too long, while PostgreSQL refuses to write this text into the column.
COLUMNS = """
    WITH RECURSIVE base (attnum, attname, oid) AS (
        SELECT attnum, attname, atttypid FROM pg_attribute
        WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped
        UNION ALL SELECT attnum, attname, typbasetype FROM base JOIN pg_type USING (oid) WHERE typtype = 'd'
    )
    SELECT attname, format_type(oid, -1), typname, typcategory FROM base JOIN pg_type USING (oid)
    WHERE typtype <> 'd' ORDER BY attnum
"""
CONSTRAINED = """
    SELECT a.attname, a.attgenerated <> '' OR 0 = ANY (columns) OR EXISTS (
        SELECT FROM pg_trigger WHERE tgrelid = relation AND NOT tgisinternal AND tgtype & 3 = 3  -- row, before
    ) FROM pg_attribute a JOIN (
        SELECT conrelid, conkey FROM pg_constraint WHERE conname = $1 UNION ALL
        SELECT indrelid, indkey::int2[] FROM pg_index JOIN pg_class ON oid = indexrelid WHERE relname = $1
    ) AS known (relation, columns) ON a.attrelid = relation AND a.attnum = ANY (columns)
    WHERE relation = to_regclass($2) OR to_regclass($2) IN (SELECT pg_partition_ancestors(relation))
"""


class TableError(Exception):
    """The table does not fit the options."""


@dataclass(frozen=True, slots=True)
class Table(WriteTarget):
    """A table, and the SQL statements that write its rows."""

    name: str
    """The name in the options: `orders`, or `shop.orders`."""
    columns: tuple[PostgresqlColumn, ...]
    mode: Mode
    version: str | None

    @classmethod
    async def look_up(cls, connection: AsyncConnection[Any], options: PostgreSql.Options) -> Table:
        """Read the table from the database. Raises TableError if the table, a column or the unique index is missing."""
        name, values, key = options.table, options.columns, options.key
        table = (_quoted(name),)
        found = await (await connection.execute(COLUMNS, table)).fetchall()
        if not found:
            raise TableError(f"the database has no table {name}")
        kinds = {column: (kind, base, category) for column, kind, base, category in found}
        if missing := [column for column in values if column not in kinds]:
            raise TableError(f"the table {name} has no column {', '.join(missing)}; it has {', '.join(kinds)}")
        unique = [set(names) for (names,) in await (await connection.execute(UNIQUE_KEYS, table)).fetchall()]
        if key and set(key) not in unique:
            listed = ", ".join(key)
            raise TableError(
                f"{name} has no unique index on exactly the columns of the key, {listed}; run "
                f"CREATE UNIQUE INDEX ON {name} ({listed})"
            )
        columns = tuple(PostgresqlColumn(column, *kinds[column], value) for column, value in values.items())
        parts, names = {column.name: column.text for column in columns}, (*values, name.rpartition(".")[2])
        return cls(parts, key, names, repr(columns), name, columns, options.mode, options.version)

    @property
    def written(self) -> tuple[str, ...]:
        return tuple(self.parts)

    @property
    def stages(self) -> bool:
        """Whether rows are first copied to a temporary table, because COPY itself cannot skip rows."""
        return self.mode == "copy" and bool(self.key)

    def insert(self) -> bytes:
        """Return the statement for one row, whose values are parameters."""
        return f"{self._insert} VALUES ({self._values}){self._on_conflict}".encode()

    def convert(self) -> bytes:
        """Return a SELECT that converts the values of one row to the types of their columns, without writing them."""
        return f"SELECT {self._values}".encode()

    def copy(self) -> bytes:
        """Return the COPY statement, to be followed by rows in COPY's format."""
        table = self._stage if self.stages else _quoted(self.name)
        return f"COPY {table} ({quote_identifiers(self.written)}) FROM STDIN".encode()

    def make_stage(self) -> bytes:
        """Return the statement that creates the transaction's temporary table, whose name has a hash of its columns."""
        return (
            f"CREATE TEMPORARY TABLE {self._stage} ON COMMIT DROP AS SELECT {quote_identifiers(self.written)} "
            f"FROM {_quoted(self.name)} WITH NO DATA"
        ).encode()

    def empty_stage(self) -> bytes:
        """Return the statement that inserts the rows of the temporary table into the table, except existing keys."""
        return f"{self._insert} SELECT {quote_identifiers(self.written)} FROM {self._stage}{self._on_conflict}".encode()

    @property
    def _stage(self) -> str:
        kinds = repr((self.name, [(column.name, column.type) for column in self.columns]))
        return quote_identifier(f"rmqd_{hashlib.sha256(kinds.encode()).hexdigest()[:16]}")

    @property
    def _values(self) -> str:
        return ", ".join(f"${number}::{column.type}" for number, column in enumerate(self.columns, 1))

    @property
    def _insert(self) -> str:
        overriding = " OVERRIDING SYSTEM VALUE" if self.mode == "copy" else ""  # COPY does the same
        return f"INSERT INTO {_quoted(self.name)} AS {TARGET_ALIAS} ({quote_identifiers(self.written)}){overriding}"

    @property
    def _on_conflict(self) -> str:
        order_by = (self.version,) if self.version is not None else ()
        return on_conflict_clause(self.written, self.key, order_by, replaces=self.mode == "upsert")


def _quoted(name: str) -> str:
    return ".".join(map(quote_identifier, name.split(".")))


def _quotes_no_row(record: logging.LogRecord) -> bool:
    """Filter psycopg's log records. Its warnings are dropped: they quote the server's response, which has the row."""
    return record.levelno >= logging.ERROR


class PostgreSql(RowHandler[Table]):
    """Writes each message as a row of a table. With a unique key, a redelivered message adds no second row."""

    class Options(HandlerOptions):
        url: LibpqUrl = Field(
            description="the database: postgresql://user:password@host/database, or libpq's keywords; "
            "several hosts with target_session_attrs=read-write follow a failover"
        )
        table: str = Field(description="the table, which must exist: orders, or shop.orders", pattern=TABLE_PATTERN)
        columns: Annotated[dict[str, MessageValue], Field(min_length=1)] = Field(description=COLUMNS_TEXT)
        mode: Mode = option(
            "insert",
            "insert; upsert, which replaces the row with the same key; or copy, which inserts with COPY: "
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
        require("psycopg_pool", "postgresql")
        super().__init__("postgresql", options.on_invalid, options.retry_for)
        self._options = options
        self._pool: AsyncConnectionPool[AsyncConnection[Any]]
        self._slots = asyncio.Semaphore(options.max_connections)
        self._prepares = True  # whether to prepare statements; False if a pool may mix them up

    async def start(self) -> None:
        """Look the table up now: a wrong name, or an unavailable database, fails the start instead of each message."""
        from psycopg import AsyncConnection, AsyncRawCursor
        from psycopg_pool import AsyncConnectionPool

        logging.getLogger("psycopg").addFilter(_quotes_no_row)
        conninfo = conninfo_of(self._options.url.get_secret_value())
        raw: Any = {"cursor_factory": AsyncRawCursor}  # others read a percent sign in a name as a parameter
        async with await AsyncConnection.connect(conninfo, **raw) as connection:
            self._target = await Table.look_up(connection, self._options)
            self._prepares = await (await connection.execute(BACKEND_PID)).fetchone() == (connection.info.backend_pid,)
        self._pool = AsyncConnectionPool(
            conninfo,
            kwargs=raw,
            min_size=1,
            max_size=self._options.max_connections,
            open=False,
            name="rmqd",
            timeout=WAIT_SECONDS,
            reconnect_timeout=CONNECT_SECONDS,  # the next batch connects again, instead of waiting for a long backoff
        )
        await self._pool.open()

    async def stop(self) -> None:
        await self._pool.close()

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        from psycopg import Error

        return Error, TableError

    def _may_pass(self, error: Any) -> bool:
        return is_temporary(error)

    async def _read_target(self) -> Table:
        async with self._connected(self._target, ()) as connection, connection.transaction():
            return await Table.look_up(connection, self._options)

    @asynccontextmanager
    async def _connected(self, table: Table, rows: Rows) -> AsyncIterator[AsyncConnection[Any]]:
        """Use a connection of the pool. Errors keep the driver's class, but their texts do not contain row values."""
        from psycopg import Error

        try:
            async with self._slots, self._pool.connection() as connection:
                if not self._prepares:
                    connection.prepare_threshold = None
                yield connection
        except Error as error:
            self._prepares = self._prepares and not is_unprepared(error)
            text = error_text(error, table.names, (value for _, row in rows for value in row))
            raise type(error)(text) from None

    async def _write(self, target: Table, rows: Rows) -> UnwrittenOutcome:
        from psycopg.errors import DatabaseError

        async with self._connected(target, rows) as connection:
            try:
                await self._write_all(connection, target, [row for _, row in rows])
            except DatabaseError as error:
                if is_standby(error):
                    await connection.close()  # the pool replaces it with a connection to the new primary
                is_of_counterpart = cause_of(error, target.written) is ErrorCause.COUNTERPART
                if is_of_counterpart and (connection.closed or is_temporary(error)):
                    raise
                return UnwrittenOutcome(await self._write_each(connection, target, rows))
        return UnwrittenOutcome()

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

    async def _write_each(self, connection: AsyncConnection[Any], table: Table, rows: Rows) -> list[RefusedRow]:
        """Write the rows that the database accepts in one transaction. Returns the refused rows."""
        from psycopg.errors import DatabaseError

        refused = []
        async with connection.transaction():
            # so that a deferred constraint fails at its row, and not at COMMIT
            await connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
            for message, row in rows:
                try:
                    async with connection.transaction():
                        await connection.execute(table.insert(), row)
                except DatabaseError as error:
                    fault = cause_of(error, table.written)
                    if fault is ErrorCause.COUNTERPART:
                        if is_temporary(error) or not await _is_of_values(connection, table, row, error):
                            raise
                        fault = ErrorCause.MESSAGE
                    elif not await _may_satisfy(connection, table, error):
                        raise
                    refused.append(RefusedRow(message, fault, error_text(error, table.names, row)))
        return refused


async def _is_of_values(connection: AsyncConnection[Any], table: Table, row: Row, error: Any) -> bool:
    """Return whether a column's type refuses a value. The SQLSTATE may not show it, for example for tsquery."""
    nothing = await _state_after(connection, table.convert(), [None] * len(row))
    return nothing is None and await _state_after(connection, table.convert(), row) == error.sqlstate


async def _state_after(connection: AsyncConnection[Any], statement: bytes, values: Sequence[Any] = ()) -> str | None:
    """Run a statement, and roll its changes back. Returns the SQLSTATE if it fails; else None."""
    from psycopg.errors import DatabaseError

    try:
        async with connection.transaction(force_rollback=True):
            await connection.execute(statement, values)
    except DatabaseError as error:
        return error.sqlstate
    return None


async def _may_satisfy(connection: AsyncConnection[Any], table: Table, error: Any) -> bool:
    """Return whether a row with other values may satisfy the violated constraint.

    True if the constraint has a column that the handler writes, or a computed value. An invalid value (class 22) may be
    the default of another column. A row of nulls is then refused too, and the result is False.
    """
    name, place, state = error.diag.constraint_name, _quoted(table.name), str(error.sqlstate)
    if state.startswith("22") and not error.diag.context:
        return await _state_after(connection, table.insert(), [None] * len(table.columns)) != state
    found = await connection.execute(CONSTRAINED, (name, place))
    columns = await found.fetchall()
    return not columns or any(is_computed or column in table.written for column, is_computed in columns)
