"""The SQL statement for each row (an INSERT, or the option `statement`), and the conversion of values for it."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from sqlalchemy import Connection, Executable, MetaData, Table, case, insert, inspect, literal_column, or_, text, types
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import NoSuchTableError

from rmqd.handler_api.destinations.upsert_sql import later_row_condition, quote_identifier
from rmqd_handlers.message_values import (
    InvalidBodyError,
    ParsedMessage,
    Value,
    as_bytes,
    as_json,
    as_text,
    in_utc,
    number_in,
    time_of,
    to_json,
)
from rmqd_handlers.rows import WriteTarget

_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]{1,1000}\s*")
_TRUE: Final = ("true", "t", "yes", "y", "on", "1")
_FALSE: Final = ("false", "f", "no", "n", "off", "0")
_NOT_READ: Final = object()


@dataclass(frozen=True, slots=True)
class JsonText:
    """Text that is already JSON, for a JSON column."""

    text: str


def json_serializer(value: object) -> str:
    """Return JSON text. SQLAlchemy uses this function."""
    return value.text if isinstance(value, JsonText) else to_json(value)


def for_column(name: str, kind: types.TypeEngine[Any], value: Value) -> Callable[[ParsedMessage], Any]:
    """Return the function that reads a message's value for a column. It raises InvalidBodyError for a wrong type."""
    read, what = _reader(kind, is_timestamp=value.is_timestamp)

    def part(opened: ParsedMessage) -> Any:
        found = value(opened)
        if found is None:
            return None
        made = read(found)
        if made is _NOT_READ:
            raise InvalidBodyError(f"the column {name} needs {what}, but {value.text} is {_kind(found)}")
        return made

    return part


def for_parameter(value: Value, *, has_decimals: bool) -> Callable[[ParsedMessage], Any]:
    """Return the function that reads a message's value for a parameter. Lists and objects become text."""

    def part(opened: ParsedMessage) -> Any:
        found = value(opened)
        if isinstance(found, Decimal):
            return found if has_decimals else float(found)
        return found if found is None or isinstance(found, bool | int | bytes) else as_text(found)

    return part


def _reader(kind: types.TypeEngine[Any], *, is_timestamp: bool) -> tuple[Callable[[Any], Any], str]:
    """Return a function that converts a value for a column, or returns `_NOT_READ`, and the expected form as text."""
    if isinstance(kind, types.JSON):
        return lambda value: JsonText(as_json(value)), "JSON"
    if isinstance(kind, types.ARRAY):
        return _array_reader(kind), "a list"
    if isinstance(kind, types.DateTime | types.Date) and is_timestamp:
        to_kind = _naive_or_aware(kind) if isinstance(kind, types.DateTime) else datetime.date
        return lambda value: to_kind(time_of(value)), "a time"
    for types_of, read, what in _READERS:
        if isinstance(kind, types_of):
            return read, what
    if isinstance(kind, types.DateTime):
        to_kind = _naive_or_aware(kind)
        return lambda value: _by(lambda text: to_kind(datetime.fromisoformat(text)), value), "a time by ISO 8601"
    return as_text, "a text"


def _array_reader(kind: types.ARRAY[Any]) -> Callable[[Any], Any]:
    read, _ = _reader(kind.item_type, is_timestamp=False)

    def read_list(value: Any) -> Any:
        if not isinstance(value, list):
            return _NOT_READ
        made = [None if one is None else read_list(one) if isinstance(one, list) else read(one) for one in value]
        return _NOT_READ if any(one is _NOT_READ for one in made) else made

    return read_list


def _naive_or_aware(kind: types.DateTime) -> Callable[[datetime], datetime]:
    """Return a function that converts times to UTC, without a zone if the column has none. Naive times are in UTC."""
    return in_utc if kind.timezone else lambda at: in_utc(at).replace(tzinfo=None)


def _by(parse: Callable[[str], Any], value: Any) -> Any:
    """Parse a text, or a body as text. Returns `_NOT_READ` for an invalid text, or another type."""
    try:
        return parse(as_text(value)) if isinstance(value, str | bytes) else _NOT_READ
    except (ValueError, OverflowError, InvalidOperation):
        return _NOT_READ


def _integer(value: Any) -> Any:
    if isinstance(value, int):
        return int(value)  # true becomes 1, because some databases have no booleans
    return _by(lambda text: int(text) if _INTEGER.fullmatch(text) else _NOT_READ, value)


def _number(value: Any) -> Any:
    number = number_in(value)
    return _NOT_READ if number is None else number


def _float(value: Any) -> Any:
    number = number_in(value)
    try:
        made = math.inf if number is None else float(number)
    except OverflowError:
        return _NOT_READ
    return made if math.isfinite(made) else _NOT_READ


def _boolean(value: Any) -> Any:
    text = as_text(value).strip().lower() if isinstance(value, bool | int | str | bytes) else ""
    return True if text in _TRUE else False if text in _FALSE else _NOT_READ


def _kind(value: Any) -> str:
    names = {bool: "a boolean", str: "another text", bytes: "another text", list: "a list", dict: "an object"}
    return names.get(type(value), "another number")


_READERS: Final[tuple[tuple[type[types.TypeEngine[Any]], Callable[[Any], Any], str], ...]] = (
    (types.Boolean, _boolean, "true or false"),
    (types.Integer, _integer, "a whole number"),
    (mysql.BIT, _integer, "a whole number"),  # MySQL would store the character code of a digit
    (types.Float, _float, "a number"),
    (types.Numeric, _number, "a number"),
    (types.LargeBinary, as_bytes, "bytes"),
    (types.Date, lambda value: _by(date.fromisoformat, value), "a date by ISO 8601"),
    (types.Time, lambda value: _by(time.fromisoformat, value), "a time of day by ISO 8601"),
    (types.Uuid, lambda value: _by(uuid.UUID, value), "a UUID"),
)


ON_CONFLICT_DIALECTS: Final = ("postgresql", "sqlite")
ON_DUPLICATE_KEY_DIALECTS: Final = ("mysql", "mariadb")


class TargetError(Exception):
    """The table or the statement does not fit the options."""


@dataclass(frozen=True, slots=True)
class RowTarget(WriteTarget):
    """The SQL statement for each row. The parts of a row are the parameters of the statement."""

    statement: Executable


def target_of_statement(connection: Connection, statement: str, parameters: Mapping[str, Value]) -> RowTarget:
    """Return the target for a statement. Raises TargetError if the statement names a parameter that is not given."""
    made = text(statement)
    named = set(made.compile().params)
    if missing := sorted(named - parameters.keys()):
        raise TargetError(
            f"the statement names :{', :'.join(missing)}, which are missing in parameters (write a colon that does "
            r"not start a parameter as \:)"
        )
    if unused := sorted(parameters.keys() - named):
        raise TargetError(
            f"parameters has {', '.join(unused)}, which the statement does not use (instead of :id::text write "
            "CAST(:id AS text))"
        )
    has_decimals = connection.dialect.name != "sqlite"
    parts = {name: for_parameter(value, has_decimals=has_decimals) for name, value in parameters.items()}
    return RowTarget(parts, (), tuple(parts), "", made)


def of_table(
    connection: Connection, name: str, values: Mapping[str, Value], mode: str, key: Sequence[str], version: str | None
) -> RowTarget:
    """Read the table from the database. Raises TargetError if a column is missing, or the key has no unique index."""
    schema, _, bare = name.rpartition(".")
    try:
        table = Table(bare, MetaData(), schema=schema or None, autoload_with=connection, resolve_fks=False)
    except NoSuchTableError:
        raise TargetError(f"the database has no table {name}") from None
    if missing := [column for column in values if column not in table.columns]:
        raise TargetError(
            f"the table {name} has no column {', '.join(missing)}; it has {', '.join(table.columns.keys())}"
        )
    if key:
        _check_key(connection, table, name, list(values), key)
    for column in table.columns:
        if isinstance(column.type, types.JSON):
            column.type.none_as_null = True
    parts = {column: for_column(column, table.columns[column].type, value) for column, value in values.items()}
    statement = _insert(connection.dialect.name, table, list(values), mode, key, version)
    kinds = repr([(column, table.columns[column].type) for column in values])
    return RowTarget(parts, key, (*values, bare), kinds, statement)


def _check_key(connection: Connection, table: Table, name: str, written: Sequence[str], key: Sequence[str]) -> None:
    dialect = connection.dialect.name
    if dialect not in (*ON_CONFLICT_DIALECTS, *ON_DUPLICATE_KEY_DIALECTS):
        raise TargetError(
            f"key works with sqlite, postgresql, mysql and mariadb, not with {dialect}; use a statement instead of "
            "the table, such as a MERGE"
        )
    unique = _unique(connection, table)
    if set(key) not in unique:
        listed = ", ".join(key)
        raise TargetError(
            f"{name} has no unique index on exactly the columns of the key, {listed}; run "
            f"CREATE UNIQUE INDEX {table.name}_{'_'.join(key)} ON {name} ({listed})"
        )
    others = [one for one in unique if one != set(key) and one & set(written)]
    if others and dialect in ON_DUPLICATE_KEY_DIALECTS:
        raise TargetError(
            f"{name} has another unique index, of {', '.join(sorted(others[0]))}: {dialect} does not report which "
            "index a row violates, so rows with other keys could be skipped or overwritten; use a statement instead "
            "of a table"
        )


def _unique(connection: Connection, table: Table) -> list[set[str]]:
    """Return the columns of each unique index that has only columns and covers all rows."""
    seen = inspect(connection)
    found = [seen.get_pk_constraint(table.name, table.schema)["constrained_columns"]]
    found += [one["column_names"] for one in seen.get_unique_constraints(table.name, table.schema)]
    for index in seen.get_indexes(table.name, table.schema):
        is_partial = any(name.endswith("_where") for name in index.get("dialect_options", {}))
        if index["unique"] and not is_partial and "expressions" not in index:
            found.append([column for column in index["column_names"] if column is not None])
    return [set(names) for names in found if names]


def _insert(
    dialect: str, table: Table, written: Sequence[str], mode: str, key: Sequence[str], version: str | None
) -> Executable:
    if not key:
        return insert(table).inline()
    changed = [name for name in written if name not in key] if mode == "upsert" else []
    if dialect in ON_DUPLICATE_KEY_DIALECTS:
        return _on_duplicate_key(table, changed, key, version)
    made = (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table).inline()
    if not changed:
        return made.on_conflict_do_nothing(index_elements=key)
    return made.on_conflict_do_update(
        index_elements=key,
        set_={name: made.excluded[name] for name in changed},
        where=None
        if version is None
        else literal_column(f"NOT ({later_row_condition(quote_identifier(table.name), 'EXCLUDED', [version])})"),
    )


def _on_duplicate_key(table: Table, changed: Sequence[str], key: Sequence[str], version: str | None) -> Executable:
    made = mysql.insert(table).inline()
    if not changed:
        return made.on_duplicate_key_update([(key[0], table.columns[key[0]])])
    if version is None:
        return made.on_duplicate_key_update([(name, made.inserted[name]) for name in changed])
    stored = table.columns[version]
    is_newer = or_(stored.is_(None), stored <= made.inserted[version])
    # MySQL assigns columns in order, and each sees the earlier values, so the version must be last
    in_order = sorted(changed, key=lambda name: name == version)
    return made.on_duplicate_key_update(
        [(name, case((is_newer, made.inserted[name]), else_=table.columns[name])) for name in in_order]
    )
