"""A table as PostgreSQL describes it, and whether rows of a schema can go there."""

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

_MICROSECONDS: Final = 6  # digits, as Spark has them
# by the table's type: Spark's that it rounds
_ROUNDED: Final = {
    "date": ("timestamp", "timestamp_ntz", "string"),
    "real": ("int", "bigint", "double", "decimal", "string"),
    "double precision": ("bigint", "decimal", "string"),
    "money": ("float", "double", "decimal", "string"),
}
KEYS_TOLD: Final = "rmqd.keys"
"""The metadata of a column by which a pipeline tells the sink by which columns it knows a row again."""
JSON_TYPES: Final = ("json", "jsonb")
_UNORDERED: Final = "json"
_TEXTS: Final = ("text", "character varying", "character")
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
BYTES: Final = "bytea"
# what a missing table would be made with; Spark's simple names
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
    """Its type, as PostgreSQL writes it, without length or scale."""
    is_computed: bool
    """Whether the database alone gives it its value."""
    is_needed: bool
    """Whether a row must bring a value for it."""
    written: str = ""
    """Its type with length or scale."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """One table."""

    schema: str
    table: str
    columns: dict[str, Column]
    unique: tuple[frozenset[str], ...]
    """The sets of columns of which no two rows have the same values."""

    def problems(self, rows: StructType, keys: Sequence[str], order_by: Sequence[str]) -> Iterator[str]:
        """Why rows cannot go there."""
        names = rows.fieldNames()
        yield from (
            f"column {name}: rmqd has one of this name itself; accepted: another name" for name in OWN if name in names
        )
        for field in rows.fields:
            if problem := self._column_problem(field.name, field.dataType.simpleString()):
                yield f"column {field.name}: {problem}"
        for name, column in self.columns.items():
            if column.is_needed and name not in names:
                yield f"column {name}: the table wants a value, and the pipeline's rows have no such column"
        for key, columns in (("keys", keys), ("order_by", order_by)):
            for name in columns:
                if name not in names:
                    yield f"{key}: there is no column {name}; the pipeline's are {', '.join(names)}"
        yield from (
            f"order_by: {problem}"
            for name in order_by
            if name in names and (problem := self._order_problem(name, rows[name].dataType.simpleString()))
        )
        for told in filter(None, ((field.metadata or {}).get(KEYS_TOLD) for field in rows.fields)):
            if set(told) != set(keys):
                yield (
                    f"keys: the pipeline knows a row by {', '.join(told)}, and the sink by "
                    f"{', '.join(keys) or 'nothing'}; accepted: the same in both"
                )
        if keys and frozenset(keys) not in self.unique:
            yield (
                f"keys: the table has no unique index of just {', '.join(keys)}; accepted: what CREATE UNIQUE INDEX "
                f"ON {quoted(self.schema)}.{quoted(self.table)} ({listed(keys)}) makes"
            )

    def _column_problem(self, name: str, kind: str) -> str:
        column = self.columns.get(name)
        if column is None:
            return f"the table has none of this name; it has {', '.join(self.columns)}"
        if column.is_computed:
            return "the database computes it; accepted: the pipeline's rows without it"
        outer = kind.partition("<")[0]
        is_json = column.kind in JSON_TYPES
        if not is_json and (outer in ("struct", "map") or "struct<" in kind or "map<" in kind):
            return f"is {outer} in the pipeline and {column.kind} in the table; accepted: jsonb in the table"
        if outer == "array" and not is_json and not column.kind.endswith("[]"):
            return f"is {outer} in the pipeline and {column.kind} in the table; accepted: an array or jsonb there"
        if kind == "binary" and column.kind != BYTES:
            return f"is binary in the pipeline and {column.kind} in the table; accepted: CAST({name} AS STRING)"
        return ""

    def _order_problem(self, name: str, kind: str) -> str:
        """Why the table would not tell of two values which one is later."""
        column = self.columns.get(name)
        if column is None:
            return ""
        accepted = f"accepted: {_KINDS.get(kind, _other(kind))} in the table"
        if column.kind == _UNORDERED:
            return f"{name} is {column.kind} in the table, which has no order; {accepted}"
        is_number = kind.removeprefix("array<").startswith(_NUMBERS)
        if is_number and column.kind.removesuffix("[]") in _TEXTS:
            return f"{name} is {kind} in the pipeline and {column.kind} in the table, where 10 is before 9; {accepted}"
        if _is_coarser(column.written or column.kind, kind.removeprefix("array<").removesuffix(">")):
            why = "which tells fewer values apart, so that an older row would replace a later one"
            return (
                f"{name} is {kind} in the pipeline and {column.written or column.kind} in the table, {why}; {accepted}"
            )
        return ""

    def json_columns(self, rows: StructType) -> frozenset[str]:
        """The columns whose values go there as JSON; text goes as it is."""
        return frozenset(
            field.name
            for field in rows.fields
            if self.columns[field.name].kind in JSON_TYPES and field.dataType.simpleString() != "string"
        )


def _is_coarser(written: str, kind: str) -> bool:
    """Whether PostgreSQL rounds values of Spark's `kind` without a word."""
    table, outer = re.sub(r"\(.*?\)|\[\]", "", written), kind.partition("(")[0]
    digits = [int(number) for number in re.findall(r"-?\d+", written)]  # precision of a time; precision and scale
    if table.startswith("timestamp"):
        return bool(digits) and digits[0] < _MICROSECONDS and outer not in ("date", "bigint")
    if table == "numeric" and digits:
        scale = int(kind.rstrip(")").partition(",")[2]) if outer == "decimal" else 0
        return (digits[-1] if len(digits) > 1 else 0) < scale or outer in ("float", "double", "string")
    return outer in _ROUNDED.get(table, ())


def read_shape(connection: Connection[tuple[Any, ...]], table: str, rows: StructType) -> TableShape:
    """Ask for a table, by its name as SQL writes it. Raises RmqdError where there is none, with what would make it."""
    found = connection.execute(_TABLE, (table,)).fetchone()
    if found is None:
        made = ", ".join(
            f"{quoted(field.name)} {_KINDS.get(field.dataType.simpleString(), _other(field.dataType.simpleString()))}"
            for field in rows.fields
        )
        raise RmqdError(f"there is no table {table}; accepted: what CREATE TABLE {table} ({made}) makes, or the like")
    oid, schema, name = found
    columns = {row[0]: Column(*row[1:]) for row in connection.execute(_COLUMNS, (oid,))}
    unique = tuple(frozenset(row[0]) for row in connection.execute(_UNIQUE, (oid,)))
    return TableShape(schema, name, columns, unique)


def _other(kind: str) -> str:
    if kind.startswith("decimal"):
        return kind.replace("decimal", "numeric")
    element = kind.removeprefix("array<").removesuffix(">")
    return f"{_KINDS[element]}[]" if kind.startswith("array<") and element in _KINDS else "jsonb"
