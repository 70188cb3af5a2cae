"""SQL for rows that replace the row of their key, unless that row is later. For PostgreSQL and SQLite. No I/O.

Also the names that describe a pipeline's rows to a sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

PLACE_COLUMN: Final = "_place"
"""A column with the message of a row. A sink uses it to name a refused row, and does not store it."""
PLACE_COLUMNS: Final = ("topic", "broker", "queue_id", "queue_offset")
"""The fields of `_place`; also columns of the source."""
ORDER_KIND: Final = "rmqd.order"
"""Metadata of an order column: the meaning of its values. Values of different meaning are not comparable."""
KEYS_METADATA: Final = "rmqd.keys"
"""Metadata of a column: the pipeline's key of a row. The sink's `keys` must be the same: otherwise it would replace or
delete other rows.
"""
UNIQUE_KEYS: Final = """
    SELECT array_agg(a.attname::text)
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL
    GROUP BY i.indexrelid
"""
"""Selects the sets of columns that are valid keys for `on_conflict`: each has a unique index of only columns, for all
rows, and checked immediately. Parameter: the table's name in SQL.
"""
TARGET_ALIAS: Final = "t"
"""The alias of the table in an INSERT with `on_conflict`."""


def quoted(name: str) -> str:
    """Quote an identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Iterable[str]) -> str:
    """Quote several identifiers, separated by commas."""
    return ", ".join(map(quoted, names))


def later(one: str, other: str, names: Sequence[str]) -> str:
    """Return the condition that row `one` is later: the first column that differs decides, and null comes first."""
    found, same = [], ""
    for name in names:
        first, second = f"{one}.{quoted(name)}", f"{other}.{quoted(name)}"
        found.append(f"{same}(({first} > {second}) IS TRUE OR ({first} IS NOT NULL AND {second} IS NULL))")
        same += f"{first} IS NOT DISTINCT FROM {second} AND "
    return " OR ".join(found)


def on_conflict(
    columns: Iterable[str], keys: Sequence[str], order_by: Sequence[str] = (), *, replaces: bool = True
) -> str:
    """Return the ON CONFLICT clause of an INSERT; empty without keys.

    With `order_by`, a later row stays in the table. Without `replaces`, each row stays.
    """
    if not keys:
        return ""
    others = [name for name in columns if name not in keys] if replaces else []
    if not others:
        return f" ON CONFLICT ({listed(keys)}) DO NOTHING"
    changes = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in others)
    unless_later = f" WHERE NOT ({later(TARGET_ALIAS, 'EXCLUDED', order_by)})" if order_by else ""
    return f" ON CONFLICT ({listed(keys)}) DO UPDATE SET {changes}{unless_later}"
