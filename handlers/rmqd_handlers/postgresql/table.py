"""Values in PostgreSQL's text format. The column's type determines the format, so a message cannot have the wrong
one.

The destination table: its description in the database, and the statements that write to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rmqd_handlers.message_values import Opened, Value, as_bytes, as_json, as_text, time_of

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.sql import Composed, Identifier


@dataclass(frozen=True, slots=True)
class PostgresqlColumn:
    """A column to write, as the database describes it."""

    name: str
    type: str
    """The SQL name of its base type without a length: `numeric`, `text[]`."""
    base: str
    """The internal name of the type: `numeric`, `_text`."""
    category: str
    """PostgreSQL's category of types: A for arrays, D for dates and times, ..."""
    value: Value

    def text(self, opened: Opened) -> str | None:
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

# Parameters are cast to the type without a length, and without its domain: a cast to varchar(40) silently cuts a text
# that is too long, while writing it into such a column is an error.
COLUMNS = """
    SELECT a.attname, format_type(b.oid, -1), b.typname, b.typcategory
    FROM pg_attribute a
    JOIN pg_type t ON t.oid = a.atttypid
    JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""
# valid in ON CONFLICT: unique, only columns, for all rows, and checked immediately
UNIQUE_KEYS = """
    SELECT array_agg(a.attname::text)
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL
    GROUP BY i.indexrelid
"""


class TableError(Exception):
    """The table does not fit the options."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and how its rows are written."""

    name: str
    """The name in the options: `orders`, or `shop.orders`."""
    columns: tuple[PostgresqlColumn, ...]
    mode: Mode
    key: tuple[str, ...]
    version: str | None

    @classmethod
    async def look_up(
        cls,
        connection: AsyncConnection[Any],
        name: str,
        values: Mapping[str, Value],
        mode: Mode,
        key: Sequence[str],
        version: str | None,
    ) -> Table:
        """Look the table up in the database. Raises TableError if a column or the unique index is missing."""
        quoted = _identifier(name).as_string(connection)
        found = await (await connection.execute(COLUMNS, (quoted,))).fetchall()
        if not found:
            raise TableError(f"the database has no table {name}")
        kinds = {column: (kind, base, category) for column, kind, base, category in found}
        if missing := [column for column in values if column not in kinds]:
            raise TableError(f"the table {name} has no column {', '.join(missing)}; it has {', '.join(kinds)}")
        unique = [set(names) for (names,) in await (await connection.execute(UNIQUE_KEYS, (quoted,))).fetchall()]
        if key and set(key) not in unique:
            listed = ", ".join(key)
            raise TableError(
                f"{name} has no unique index on exactly the columns of the key, {listed}; run "
                f"CREATE UNIQUE INDEX ON {name} ({listed})"
            )
        columns = tuple(PostgresqlColumn(column, *kinds[column], value) for column, value in values.items())
        return cls(name, columns, mode, tuple(key), version)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that an error may contain: the columns and the table."""
        return (*self.written, self.name.rpartition(".")[2])

    @property
    def written(self) -> tuple[str, ...]:
        """The columns that a row sets."""
        return tuple(column.name for column in self.columns)

    @property
    def stages(self) -> bool:
        """Whether rows are first copied to a temporary table, because COPY itself cannot skip rows."""
        return self.mode == "copy" and bool(self.key)

    def insert(self) -> Composed:
        """Return the statement for one row, whose values are parameters."""
        from psycopg.sql import SQL

        places = SQL(", ").join(SQL("%s::{}").format(SQL(column.type)) for column in self.columns)
        return SQL("INSERT INTO {} ({}) VALUES ({}){}").format(
            _identifier(self.name), self._names(), places, self._on_conflict()
        )

    def copy(self) -> Composed:
        """Return the statement before rows in COPY's format."""
        from psycopg.sql import SQL

        to = self._stage() if self.stages else _identifier(self.name)
        return SQL("COPY {} ({}) FROM STDIN").format(to, self._names())

    def make_stage(self) -> Composed:
        """Return the statement that creates a transaction's temporary table. Behind a pool, the session may have one of
        another group or version.
        """
        from psycopg.sql import SQL

        return SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            self._stage(), self._names(), _identifier(self.name)
        )

    def empty_stage(self) -> Composed:
        """Return the statement that moves the rows of the temporary table to the table, except existing keys."""
        from psycopg.sql import SQL

        return SQL("INSERT INTO {table} ({names}) SELECT {names} FROM {stage}{on_conflict}").format(
            table=_identifier(self.name),
            names=self._names(),
            stage=self._stage(),
            on_conflict=self._on_conflict(),
        )

    def _stage(self) -> Identifier:
        kinds = repr((self.name, [(column.name, column.type) for column in self.columns]))
        return _identifier(f"rmqd_{hashlib.sha256(kinds.encode()).hexdigest()[:16]}")

    def _names(self) -> Composed:
        from psycopg.sql import SQL, Identifier

        return SQL(", ").join(Identifier(column.name) for column in self.columns)

    def _on_conflict(self) -> Composed:
        from psycopg.sql import SQL, Identifier

        if not self.key:
            return SQL("").format()
        key = SQL(", ").join(map(Identifier, self.key))
        others = [Identifier(column.name) for column in self.columns if column.name not in self.key]
        if self.mode != "upsert" or not others:
            return SQL(" ON CONFLICT ({}) DO NOTHING").format(key)
        sets = SQL(", ").join(SQL("{0} = EXCLUDED.{0}").format(name) for name in others)
        update = SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(key, sets)
        if self.version is None:
            return update
        stored = SQL("{}.{}").format(Identifier(self.name.rpartition(".")[2]), Identifier(self.version))
        given = SQL("EXCLUDED.{}").format(Identifier(self.version))
        return SQL("{} WHERE {} IS NULL OR {} <= {}").format(update, stored, stored, given)


def _identifier(name: str) -> Identifier:
    from psycopg.sql import Identifier

    return Identifier(*name.split("."))
