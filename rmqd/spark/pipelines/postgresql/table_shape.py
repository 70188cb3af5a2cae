"""A table as PostgreSQL describes it, and whether rows of a schema fit it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rmqd.errors import RmqdError
from rmqd.spark.pipelines.postgresql.statements import OWN, listed, quoted

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql.types import StructType

_MICROSECONDS: Final = 6  # digits of Spark's timestamps
# by type of the table: Spark's types whose values it rounds
_ROUNDED: Final = {
    "date": ("timestamp", "timestamp_ntz", "string"),
    "real": ("int", "bigint", "double", "decimal", "string"),
    "double precision": ("bigint", "decimal", "string"),
    "money": ("float", "double", "decimal", "string"),
}
KEYS_TOLD: Final = "rmqd.keys"
"""Metadata of a column: the key columns that the pipeline uses. The sink's `keys` must be the same."""
JSON_TYPES: Final = ("json", "jsonb")
_UNORDERED: Final = "json"
_TEXTS: Final = ("text", "character varying", "character")
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
BYTES: Final = "bytea"
# types for a proposed CREATE TABLE, by Spark's simple name
_KINDS: Final = {
    "string": "text",
    "int": "integer",
    "bigint": "bigint",
    "smallint": "smallint",
    "tinyint": "smallint",
    "double": "double precision",
    "float": "real",
    "boolean": "boolean",
    "binary": BYTES,
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "date": "date",
}
_TABLE: Final = (
    "SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.oid = to_regclass(%s)"
)
_COLUMNS: Final = (
    "SELECT attname, format_type(atttypid, NULL), attgenerated <> '' OR attidentity = 'a', "
    "attnotnull AND NOT atthasdef AND attidentity = '', format_type(atttypid, atttypmod) FROM pg_attribute "
    "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
)
_UNIQUE: Final = (
    "SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
    "AND a.attnum = ANY((string_to_array(i.indkey::text, ' ')::int2[])[1:i.indnkeyatts]) "
    "WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL "
    "AND i.indexprs IS NULL GROUP BY i.indexrelid"
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    kind: str
    """The type as PostgreSQL writes it, without length or scale."""
    is_computed: bool
    """Whether only the database sets the value."""
    is_needed: bool
    """Whether a row must contain a value for the column."""
    written: str = ""
    """The type with length or scale."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """One table."""

    schema: str
    table: str
    columns: dict[str, Column]
    unique: tuple[frozenset[str], ...]
    """The sets of columns with a unique index."""

    def problems(self, rows: StructType, keys: Sequence[str], order_by: Sequence[str]) -> Iterator[str]:
        """Yield why the rows do not fit the table."""
        names = rows.fieldNames()
        yield from (f"column {name}: rmqd uses this name itself; rename the column" for name in OWN if name in names)
        for field in rows.fields:
            if problem := self._column_problem(field.name, field.dataType.simpleString()):
                yield f"column {field.name}: {problem}"
        for name, column in self.columns.items():
            if column.is_needed and name not in names:
                yield f"column {name}: the table requires a value, and the pipeline's rows have no such column"
        for key, columns in (("keys", keys), ("order_by", order_by)):
            for name in columns:
                if name not in names:
                    yield f"{key}: unknown column {name}; expected one of {', '.join(names)}"
        yield from (
            f"order_by: {problem}"
            for name in order_by
            if name in names and (problem := self._order_problem(name, rows[name].dataType.simpleString()))
        )
        for told in filter(None, ((field.metadata or {}).get(KEYS_TOLD) for field in rows.fields)):
            if set(told) != set(keys):
                yield (
                    f"keys: the pipeline identifies a row by {', '.join(told)}, and the sink by "
                    f"{', '.join(keys) or 'nothing'}; expected the same in both"
                )
        if keys and frozenset(keys) not in self.unique:
            yield (
                f"keys: the table has no unique index on exactly {', '.join(keys)}; run CREATE UNIQUE INDEX "
                f"ON {quoted(self.schema)}.{quoted(self.table)} ({listed(keys)})"
            )

    def _column_problem(self, name: str, kind: str) -> str:
        column = self.columns.get(name)
        if column is None:
            return f"unknown column; expected one of {', '.join(self.columns)}"
        if column.is_computed:
            return "the database computes it; remove it from the pipeline's rows"
        outer = kind.partition("<")[0]
        is_json = column.kind in JSON_TYPES
        if not is_json and (outer in ("struct", "map") or "struct<" in kind or "map<" in kind):
            return f"is {outer} in the pipeline and {column.kind} in the table; expected jsonb in the table"
        if outer == "array" and not is_json and not column.kind.endswith("[]"):
            return f"is {outer} in the pipeline and {column.kind} in the table; expected an array or jsonb in the table"
        if kind == "binary" and column.kind != BYTES:
            return f"is binary in the pipeline and {column.kind} in the table; use CAST({name} AS STRING)"
        return ""

    def _order_problem(self, name: str, kind: str) -> str:
        """Return why the table could not order two values; empty if it can."""
        column = self.columns.get(name)
        if column is None:
            return ""
        accepted = f"expected {_KINDS.get(kind, _other(kind))} in the table"
        if column.kind == _UNORDERED:
            return f"{name} is {column.kind} in the table, which has no order; {accepted}"
        is_number = kind.removeprefix("array<").startswith(_NUMBERS)
        if is_number and column.kind.removesuffix("[]") in _TEXTS:
            return f"{name} is {kind} in the pipeline and {column.kind} in the table, where 10 is before 9; {accepted}"
        if _is_coarser(column.written or column.kind, kind.removeprefix("array<").removesuffix(">")):
            why = "which distinguishes fewer values, so an older row would replace a later one"
            return (
                f"{name} is {kind} in the pipeline and {column.written or column.kind} in the table, {why}; {accepted}"
            )
        return ""

    def json_columns(self, rows: StructType) -> frozenset[str]:
        """Return the columns whose values must be converted to JSON; strings are copied unchanged."""
        return frozenset(
            field.name
            for field in rows.fields
            if self.columns[field.name].kind in JSON_TYPES and field.dataType.simpleString() != "string"
        )


def _is_coarser(written: str, kind: str) -> bool:
    """Return whether PostgreSQL silently rounds values of Spark's type `kind`."""
    table, outer = re.sub(r"\(.*?\)|\[\]", "", written), kind.partition("(")[0]
    digits = [int(number) for number in re.findall(r"-?\d+", written)]  # precision of a time, or precision and scale
    if table.startswith("timestamp"):
        return bool(digits) and digits[0] < _MICROSECONDS and outer not in ("date", "bigint")
    if table == "numeric" and digits:
        scale = int(kind.rstrip(")").partition(",")[2]) if outer == "decimal" else 0
        return (digits[-1] if len(digits) > 1 else 0) < scale or outer in ("float", "double", "string")
    return outer in _ROUNDED.get(table, ())


def read_shape(connection: Connection[tuple[Any, ...]], table: str, rows: StructType) -> TableShape:
    """Return the shape of a table, by its SQL name. Raises RmqdError with a CREATE TABLE statement if it is missing."""
    found = connection.execute(_TABLE, (table,)).fetchone()
    if found is None:
        made = ", ".join(
            f"{quoted(field.name)} {_KINDS.get(field.dataType.simpleString(), _other(field.dataType.simpleString()))}"
            for field in rows.fields
        )
        raise RmqdError(f"there is no table {table}; create it, for example with CREATE TABLE {table} ({made})")
    oid, schema, name = found
    columns = {row[0]: Column(*row[1:]) for row in connection.execute(_COLUMNS, (oid,))}
    unique = tuple(frozenset(row[0]) for row in connection.execute(_UNIQUE, (oid,)))
    return TableShape(schema, name, columns, unique)


def _other(kind: str) -> str:
    if kind.startswith("decimal"):
        return kind.replace("decimal", "numeric")
    element = kind.removeprefix("array<").removesuffix(">")
    return f"{_KINDS[element]}[]" if kind.startswith("array<") and element in _KINDS else "jsonb"
