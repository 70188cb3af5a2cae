"""SQL for upserts: a row replaces the stored row with the same key, unless the stored row is later. No I/O.

The SQL is valid in PostgreSQL and SQLite. This module also has the names that describe a pipeline's rows to a sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

PLACE_COLUMN: Final = "_place"
"""A column with the position of the source message. Sinks report the position of a refused row, but do not store it."""
PLACE_COLUMNS: Final = ("topic", "broker", "queue_id", "queue_offset")
"""The fields of `_place`; also columns of the source."""
ORDER_KIND: Final = "rmqd.order"
"""The metadata key for the meaning of an order column. Values of columns with different meanings are not comparable."""
KEYS_METADATA: Final = "rmqd.keys"
"""The metadata key for the pipeline's key columns. The sink's `keys` must be the same columns: otherwise the sink would
replace or delete other rows.
"""
UNIQUE_KEYS: Final = """
    SELECT array_agg(a.attname::text)
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
    WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL
    GROUP BY i.indexrelid
"""
"""Selects the sets of columns that are valid keys for `on_conflict_clause`.

Each set has a unique index that has only columns, covers all rows, and is checked immediately. Parameter: the table's
name in SQL.
"""
TARGET_ALIAS: Final = "t"
"""The alias of the table in an INSERT with `on_conflict_clause`."""


def quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quote_identifiers(names: Iterable[str]) -> str:
    """Quote several identifiers, separated by commas."""
    return ", ".join(map(quote_identifier, names))


def later_row_condition(one: str, other: str, names: Sequence[str]) -> str:
    """Return the condition that row `one` is later than row `other` in the order of the columns `names`, null first."""
    found, same = [], ""
    for name in names:
        first, second = f"{one}.{quote_identifier(name)}", f"{other}.{quote_identifier(name)}"
        found.append(f"{same}(({first} > {second}) IS TRUE OR ({first} IS NOT NULL AND {second} IS NULL))")
        same += f"{first} IS NOT DISTINCT FROM {second} AND "
    return " OR ".join(found)


def on_conflict_clause(
    columns: Iterable[str], keys: Sequence[str], order_by: Sequence[str] = (), *, replaces: bool = True
) -> str:
    """Return the ON CONFLICT clause of an INSERT; empty without keys.

    With `order_by`, a stored row that is later is not replaced. Without `replaces`, no stored row is replaced.
    """
    if not keys:
        return ""
    others = [name for name in columns if name not in keys] if replaces else []
    if not others:
        return f" ON CONFLICT ({quote_identifiers(keys)}) DO NOTHING"
    changes = ", ".join(f"{quote_identifier(name)} = EXCLUDED.{quote_identifier(name)}" for name in others)
    unless_later = f" WHERE NOT ({later_row_condition(TARGET_ALIAS, 'EXCLUDED', order_by)})" if order_by else ""
    return f" ON CONFLICT ({quote_identifiers(keys)}) DO UPDATE SET {changes}{unless_later}"
