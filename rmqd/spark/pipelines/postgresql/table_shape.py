"""Reads the columns of a PostgreSQL table and checks a pipeline's rows. Opens connections, and shortens errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import Connection, RawCursor
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql.types import StructType

from rmqd.errors import ConfigError, RmqdError
from rmqd.handler_api.destinations.upsert_sql import KEYS_METADATA, UNIQUE_KEYS, quote_identifier, quote_identifiers
from rmqd.spark.pipelines.postgresql.upsert_statements import STAGING_COLUMNS

_ONE_AT_A_TIME: Final = 0x726D7164
"""The key of the advisory lock for creating tables that several groups share. It is the ASCII codes of "rmqd"."""
CONNECT_TIMEOUT_SECONDS: Final = 10
# short, because a driver or task on a lost machine holds locks until the database detects the loss
KEEPALIVE_PARAMETERS: Final = {"keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 4}
# SQLSTATE classes whose error texts quote names but no values of rows: connections, privileges, SQL, resources,
# operator intervention. Class 42 may quote a value that is parsed as SQL: a tsquery, a jsonpath, or a name in COPY.
_WITHOUT_VALUES: Final = ("08", "25", "28", "3D", "3F", "40", "42", "53", "54", "55", "57", "58")
_SQL: Final = "42"
_SYNTAX: Final = "42601"
_RAISED: Final = "P0"
_OF_VALUES: Final = ("22", "23", "44", "45", _RAISED, "54000")  # 54000: a key is too long for its index
_SEQUENCE_ENDED: Final = "2200H"  # the sequence of a column's default has ended, which fails all rows
_OPERATIONAL: Final = ("08", "40", "53", "55", "57", "58")  # errors of the server, even if a trigger raises them
_QUOTED: Final = re.compile(r'"([^"]*)(?:"|\Z)')
_COPIED_COLUMN: Final = re.compile(r"^COPY [^,]*, line \d+, column ([^:]+):", re.MULTILINE)


def conninfo_of(url: str, options: Mapping[str, str], group: str) -> str:
    """Return libpq's connection string for the connections of a group. Raises ConfigError for invalid parameters."""
    ours: dict[str, Any] = {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "application_name": f"rmqd {group}",
        "client_encoding": "UTF8",  # by default the database's, in which the driver cannot send each text
        **KEEPALIVE_PARAMETERS,
    }
    try:
        given = conninfo_to_dict(url, **options)
        return make_conninfo(**{**ours, **given})
    except psycopg.ProgrammingError as error:
        raise ConfigError([f"sink.url or sink.options: {one_line(error)}"]) from None


@contextlib.contextmanager
def open_connection(conninfo: str, where: str) -> Iterator[Connection[tuple[Any, ...]]]:
    """Open a connection in autocommit mode. Convert database errors in this context to RmqdErrors that name `where`.

    Parameters are written $1, because other cursors of psycopg read a percent sign in a name as a parameter.
    """
    try:
        with psycopg.connect(conninfo, autocommit=True, cursor_factory=RawCursor) as connection:
            yield connection
    except psycopg.Error as error:
        # `from None`, because Spark would log the original error with its quoted values
        raise RmqdError(f"sink {where}: {db_error(error)}") from None


def table_exists(connection: Connection[tuple[Any, ...]], table: str) -> bool:
    found = connection.execute("SELECT to_regclass($1) IS NOT NULL", (table,)).fetchone()
    return found is not None and bool(found[0])


def create_if_missing(connection: Connection[tuple[Any, ...]], table: str, *statements: str) -> bool:
    """Execute the statements that create a table, if the table is missing. Return whether it was missing.

    The caller must have begun a transaction. The transaction takes a lock, because concurrent attempts to create a
    table fail. If the table exists, the user needs no CREATE privilege.
    """
    if table_exists(connection, table):
        return False
    connection.execute("SELECT pg_advisory_xact_lock($1)", (_ONE_AT_A_TIME,))
    if table_exists(connection, table):
        return False
    for statement in statements:
        connection.execute(statement)
    return True


def db_error(error: psycopg.Error) -> str:
    """Return a database error's text without row values, which may be in its quotes, its DETAIL and its CONTEXT."""
    state, diagnosis = error.sqlstate, error.diag
    if state is None:  # psycopg itself raised the error, about the connection or a value
        is_of_connection = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return one_line(error) if is_of_connection else _until_quote(one_line(error), ())
    text = diagnosis.message_primary or ""
    names = {"table": diagnosis.table_name, "column": diagnosis.column_name, "constraint": diagnosis.constraint_name}
    context = diagnosis.context or ""
    if match := _COPIED_COLUMN.search(context):
        names["column"] = match[1]
    if state.startswith(_RAISED) or "at RAISE" in context:
        text = "a function or trigger refused a row; the log of the database has the message"
    elif not state.startswith(_WITHOUT_VALUES) or state == _SYNTAX or (state.startswith(_SQL) and context):
        text = _until_quote(text, [name for name in names.values() if name])
    parts = [f"{text} ({state})", *(f"{what} {name}" for what, name in names.items() if name)]
    return ", ".join(parts)


def is_row_refused(error: psycopg.Error, columns: Sequence[str] | None = None) -> bool:
    """Return whether the database refused a row for its values. A null in a column outside `columns` does not count."""
    if columns is not None and isinstance(error, psycopg.errors.NotNullViolation):
        return error.diag.column_name in columns
    state, diagnosis = error.sqlstate or "", error.diag
    if state == _SEQUENCE_ENDED:
        return False
    is_raised = diagnosis.source_function == "exec_stmt_raise" and not state.startswith(_OPERATIONAL)
    is_of_values = state.startswith(_OF_VALUES) or isinstance(error, psycopg.DataError)  # psycopg's own have no state
    return is_of_values or is_raised or bool(_COPIED_COLUMN.search(diagnosis.context or ""))


def _until_quote(text: str, names: Sequence[str]) -> str:
    """Return the text up to the first quoted string that is not in `names`; the whole text if there is none."""
    for found in _QUOTED.finditer(text):
        if found[1] not in names:
            return f"{text[: found.start()]}..."  # ASCII, because the table of refused rows may have another encoding
    return text


def one_line(error: BaseException) -> str:
    """Return an error's text on one line. Only for errors that contain no values of rows, such as connection errors."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


_MICROSECONDS: Final = 6  # fractional digits of Spark's timestamps
# Spark's types whose values PostgreSQL rounds, by the PostgreSQL type of the column
_ROUNDED: Final = {
    "date": ("timestamp", "timestamp_ntz", "string"),
    "real": ("int", "bigint", "double", "decimal", "string"),
    "double precision": ("bigint", "decimal", "string"),
    "money": ("float", "double", "decimal", "string"),
}
JSON_TYPES: Final = ("json", "jsonb")
_UNORDERED: Final = "json"
_TEXTS: Final = ("text", "character varying", "character")
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal")
BYTES_TYPE: Final = "bytea"
# PostgreSQL's types in a proposed CREATE TABLE, by Spark's simple type names
_KINDS: Final = {
    "string": "text",
    "int": "integer",
    "bigint": "bigint",
    "smallint": "smallint",
    "tinyint": "smallint",
    "double": "double precision",
    "float": "real",
    "boolean": "boolean",
    "binary": BYTES_TYPE,
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "date": "date",
}
_TABLE: Final = (
    "SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
    "WHERE c.oid = to_regclass($1)"
)
_COLUMNS: Final = (  # with the base types of domains
    "WITH RECURSIVE base (attrelid, attnum, oid, typmod) AS (SELECT attrelid, attnum, atttypid, atttypmod "
    "FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped UNION ALL "
    "SELECT attrelid, attnum, typbasetype, typtypmod FROM base JOIN pg_type USING (oid) WHERE typtype = 'd') "
    "SELECT attname, format_type(base.oid, NULL), attgenerated <> '' OR attidentity = 'a', "
    "attnotnull AND NOT atthasdef AND attidentity = '', format_type(base.oid, typmod) FROM base "
    "JOIN pg_attribute USING (attrelid, attnum) JOIN pg_type t ON t.oid = base.oid WHERE typtype <> 'd' ORDER BY attnum"
)


@dataclass(frozen=True, slots=True)
class TableColumn:
    type_name: str
    """The type in PostgreSQL's spelling, without length or scale."""
    is_computed: bool
    """Whether only the database may set the value: a generated or identity column."""
    is_required: bool
    """Whether the column is NOT NULL without a default, so that each row must contain a value."""
    full_type: str = ""
    """The type in PostgreSQL's spelling, with length or scale."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """The columns and unique indexes of one PostgreSQL table."""

    schema: str
    table: str
    columns: dict[str, TableColumn]
    unique_column_sets: tuple[frozenset[str], ...]
    """The column sets that have a unique index."""

    def problems_with(self, rows: StructType, keys: Sequence[str], order_by: Sequence[str]) -> Iterator[str]:
        names = rows.fieldNames()
        yield from (
            f"column {name}: rmqd uses this name itself; rename the column" for name in STAGING_COLUMNS if name in names
        )
        for field in rows.fields:
            if problem := self._column_problem(field.name, field.dataType.simpleString()):
                yield f"column {field.name}: {problem}"
        for name, column in self.columns.items():
            if column.is_required and name not in names:
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
        for name in keys:
            kind = rows[name].dataType.simpleString() if name in names and name in self.columns else "string"
            if kind != "string" and _is_coarser(written := self.columns[name].full_type, kind):
                yield (
                    f"keys: {name} is {kind} in the pipeline and {written} in the table, which distinguishes fewer "
                    f"values, so different keys would become one; expected {_sql_kind(kind)} in the table"
                )
        for told in filter(None, ((field.metadata or {}).get(KEYS_METADATA) for field in rows.fields)):
            if set(told) != set(keys):
                yield (
                    f"keys: the pipeline identifies a row by {', '.join(told)}, and the sink by "
                    f"{', '.join(keys) or 'nothing'}; expected the same in both"
                )
        if keys and frozenset(keys) not in self.unique_column_sets:
            yield (
                f"keys: the table has no unique index on exactly {', '.join(keys)}; run CREATE UNIQUE INDEX "
                f"ON {quote_identifier(self.schema)}.{quote_identifier(self.table)} ({quote_identifiers(keys)})"
            )

    def _column_problem(self, name: str, kind: str) -> str:
        column = self.columns.get(name)
        if column is None:
            return f"unknown column; expected one of {', '.join(self.columns)}"
        if column.is_computed:
            return "the database computes it; remove it from the pipeline's rows"
        outer = kind.partition("<")[0]
        is_json = column.type_name in JSON_TYPES
        if not is_json and (outer in ("struct", "map") or "struct<" in kind or "map<" in kind):
            return f"is {outer} in the pipeline and {column.type_name} in the table; expected jsonb in the table"
        if outer == "array" and not is_json and not column.type_name.endswith("[]"):
            return (
                f"is {outer} in the pipeline and {column.type_name} in the table; "
                "expected an array or jsonb in the table"
            )
        if kind == "binary" and column.type_name != BYTES_TYPE:
            return f"is binary in the pipeline and {column.type_name} in the table; use CAST({name} AS STRING)"
        return ""

    def _order_problem(self, name: str, kind: str) -> str:
        """Return why the table could order two Spark values of type `kind` differently; empty if it cannot."""
        column = self.columns.get(name)
        if column is None:
            return ""
        accepted = f"expected {_sql_kind(kind)} in the table"
        if column.type_name == _UNORDERED:
            return f"{name} is {column.type_name} in the table, which has no order; {accepted}"
        is_number = kind.removeprefix("array<").startswith(_NUMBERS)
        if is_number and column.type_name.removesuffix("[]") in _TEXTS:
            table_type = column.type_name
            return f"{name} is {kind} in the pipeline and {table_type} in the table, where 10 is before 9; {accepted}"
        if _is_coarser(column.full_type or column.type_name, kind.removeprefix("array<").removesuffix(">")):
            why = "which distinguishes fewer values, so an older row would replace a later one"
            table_type = column.full_type or column.type_name
            return f"{name} is {kind} in the pipeline and {table_type} in the table, {why}; {accepted}"
        return ""

    def json_columns(self, rows: StructType) -> frozenset[str]:
        """Return the columns whose values must be converted to JSON. Strings are copied unchanged to JSON columns."""
        return frozenset(
            field.name
            for field in rows.fields
            if self.columns[field.name].type_name in JSON_TYPES and field.dataType.simpleString() != "string"
        )


def _is_coarser(written: str, kind: str) -> bool:
    """Return whether the PostgreSQL type `written` silently rounds values of the Spark type `kind`."""
    table, outer = re.sub(r"\(.*?\)|\[\]", "", written), kind.partition("(")[0]
    digits = [int(number) for number in re.findall(r"-?\d+", written)]  # precision of a time, or precision and scale
    if table.startswith("timestamp"):
        return bool(digits) and digits[0] < _MICROSECONDS and outer not in ("date", "bigint")
    if table == "numeric" and digits:
        scale = int(kind.rstrip(")").partition(",")[2]) if outer == "decimal" else 0
        return (digits[-1] if len(digits) > 1 else 0) < scale or outer in ("float", "double", "string")
    return outer in _ROUNDED.get(table, ())


def read_shape(connection: Connection[tuple[Any, ...]], table: str, rows: StructType) -> TableShape:
    """Return the shape of a table. For a missing table, raise RmqdError, which proposes a CREATE TABLE for `rows`."""
    found = connection.execute(_TABLE, (table,)).fetchone()
    if found is None:
        made = ", ".join(
            f"{quote_identifier(one.name)} {_sql_kind(one.dataType.simpleString())}" for one in rows.fields
        )
        raise RmqdError(f"there is no table {table}; create it, for example with CREATE TABLE {table} ({made})")
    oid, schema, name = found
    columns = {row[0]: TableColumn(*row[1:]) for row in connection.execute(_COLUMNS, (oid,))}
    unique = tuple(frozenset(row[0]) for row in connection.execute(UNIQUE_KEYS, (table,)))
    return TableShape(schema, name, columns, unique)


def _sql_kind(kind: str) -> str:
    """Return the PostgreSQL type for a Spark type's simple name; jsonb if there is no equivalent."""
    if kind.startswith("decimal"):
        return kind.replace("decimal", "numeric")
    element = kind.removeprefix("array<").removesuffix(">")
    return _KINDS.get(kind) or (f"{_KINDS[element]}[]" if kind.startswith("array<") and element in _KINDS else "jsonb")
