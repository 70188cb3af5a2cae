"""The SQL for a row: an INSERT into a table as the database describes it, or a statement of the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Executable, MetaData, Table, case, insert, inspect, or_, text, types
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import NoSuchTableError

from rmqd_handlers.message_values import Opened, Value

from .values import for_column, for_parameter

ON_CONFLICT: Final = ("postgresql", "sqlite")
ON_DUPLICATE_KEY: Final = ("mysql", "mariadb")


class TargetError(Exception):
    """The table or the statement does not fit the options."""


@dataclass(frozen=True, slots=True)
class Target:
    """The SQL for each row, and the parts of a row."""

    statement: Executable
    parts: Mapping[str, Callable[[Opened], Any]]
    """By parameter name."""
    key: Sequence[str]
    """The parts that determine the order of rows."""
    names: Sequence[str]
    """The names that an error may contain: the columns and the table."""
    kinds: str = ""
    """The database's description of the written columns; empty for a statement."""


def of_statement(connection: Connection, statement: str, parameters: Mapping[str, Value]) -> Target:
    """Return the target for a statement with named parameters. Raises TargetError if the options have other
    parameters.
    """
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
    return Target(made, parts, (), tuple(parts))


def of_table(
    connection: Connection, name: str, values: Mapping[str, Value], mode: str, key: Sequence[str], version: str | None
) -> Target:
    """Look the table up in the database. Raises TargetError if a column, or a requirement of the key, is missing."""
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
    return Target(statement, parts, key, (*values, bare), kinds)


def _check_key(connection: Connection, table: Table, name: str, written: Sequence[str], key: Sequence[str]) -> None:
    dialect = connection.dialect.name
    if dialect not in (*ON_CONFLICT, *ON_DUPLICATE_KEY):
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
    if others and dialect in ON_DUPLICATE_KEY:
        raise TargetError(
            f"{name} has another unique index, of {', '.join(sorted(others[0]))}: {dialect} does not report which "
            "one a row violates, and would skip or overwrite rows with other keys; use a statement instead of a table"
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
    if dialect in ON_DUPLICATE_KEY:
        return _on_duplicate_key(table, changed, key, version)
    made = (postgresql.insert if dialect == "postgresql" else sqlite.insert)(table).inline()
    if not changed:
        return made.on_conflict_do_nothing(index_elements=key)
    is_newer = None
    if version is not None:
        is_newer = or_(table.columns[version].is_(None), table.columns[version] <= made.excluded[version])
    return made.on_conflict_do_update(
        index_elements=key,
        set_={name: made.excluded[name] for name in changed},
        where=is_newer,
    )


def _on_duplicate_key(table: Table, changed: Sequence[str], key: Sequence[str], version: str | None) -> Executable:
    made = mysql.insert(table).inline()
    if not changed:
        return made.on_duplicate_key_update([(key[0], table.columns[key[0]])])
    if version is None:
        return made.on_duplicate_key_update([(name, made.inserted[name]) for name in changed])
    stored = table.columns[version]
    is_newer = or_(stored.is_(None), stored <= made.inserted[version])
    # they are assigned in order, and each sees the earlier ones, so the version must be last
    in_order = sorted(changed, key=lambda name: name == version)
    return made.on_duplicate_key_update(
        [(name, case((is_newer, made.inserted[name]), else_=table.columns[name])) for name in in_order]
    )
