"""The note of what a table's order counts by: a row that counts by something else is neither later nor earlier.

A pipeline tells it of a column by the metadata `rmqd.order`, in which `{topics}` are the group's. The note is beside
the table, for all groups that write there. The transaction of a batch has a share of it: so it becomes another one only
when none is under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.pipelines.postgresql.connections import exists
from rmqd.spark.pipelines.postgresql.deletions import Deletions
from rmqd.spark.pipelines.postgresql.statements import ONE_AT_A_TIME, Statements, quoted

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql.types import StructType

METADATA: Final = "rmqd.order"
_TOPICS: Final = "{topics}"
_NAME: Final = "rmqd_order_kinds"


def kinds_of(rows: StructType, order_by: Sequence[str], topics: Sequence[str]) -> dict[str, str]:
    """What each column of the order counts by, of those of which the pipeline tells it."""
    of = ", ".join(sorted(topics))
    told = {field.name: (field.metadata or {}).get(METADATA) for field in rows.fields}
    return {name: str(told[name]).replace(_TOPICS, of) for name in order_by if told.get(name)}


@dataclass(frozen=True, slots=True)
class OrderKinds:
    """What the order of a group's rows counts by, beside what is noted for their table."""

    statements: Statements
    kinds: Mapping[str, str]
    """By the column's name."""

    @property
    def table(self) -> str:
        """The full name of the table that notes it."""
        return self.statements.beside(_NAME)

    def note(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Note it, in a transaction, where the table has no rows that count by something else.

        Raises ConfigError where it has.
        """
        if not self.kinds:
            return
        if not exists(connection, self.table):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (ONE_AT_A_TIME,))
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self.table} (target text NOT NULL, column_name text NOT NULL, "
                "kind text NOT NULL, PRIMARY KEY (target, column_name))"
            )
        for name, kind in self.kinds.items():
            place = (self.statements.table, name)
            connection.execute(f"INSERT INTO {self.table} VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (*place, kind))
            there = self._noted(connection, name, "UPDATE")
            if there == kind:
                continue
            if filled := list(self._filled(connection, name)):
                raise ConfigError([self._problem(name, kind, there, filled)])
            connection.execute(
                f"UPDATE {self.table} SET kind = %s WHERE target = %s AND column_name = %s", (kind, *place)
            )

    def see(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Have it stay as it is until the transaction ends. Raises RmqdError where another group has changed it."""
        for name, kind in self.kinds.items():
            there = self._noted(connection, name, "SHARE")
            if there not in (kind, None):
                raise RmqdError(
                    f"{self.statements.table}: another group has begun to order its rows by {name} as {there!r}, and "
                    f"this one does as {kind!r}; accepted: one of the groups, or the same order in both"
                )

    def _noted(self, connection: Connection[tuple[Any, ...]], name: str, lock: str) -> str | None:
        found = connection.execute(
            f"SELECT kind FROM {self.table} WHERE target = %s AND column_name = %s FOR {lock}",
            (self.statements.table, name),
        ).fetchone()
        return None if found is None else str(found[0])

    def _filled(self, connection: Connection[tuple[Any, ...]], name: str) -> Iterator[str]:
        """Which tables have places in the order: null is one of whatever kind.

        Deletions are asked for them by a group without `delete_column`, too, as another one may have written them:
        they have a column of its order only where that is theirs.
        """
        deletions = Deletions(self.statements).table
        for table in (self.statements.target, deletions):
            if table == deletions and not _has_column(connection, table, name):
                continue
            found = connection.execute(f"SELECT EXISTS (SELECT FROM {table} WHERE {quoted(name)} IS NOT NULL)")
            if (row := found.fetchone()) is not None and row[0]:
                yield table

    def _forget(self, table: str, name: str) -> str:
        """The statement that leaves no place in the order: what is kept of a deletion is nothing else."""
        is_target = table == self.statements.target
        return f"UPDATE {table} SET {quoted(name)} = NULL" if is_target else f"TRUNCATE {table}"

    def _problem(self, name: str, kind: str, there: str | None, filled: Sequence[str]) -> str:
        return (
            f"sink {self.statements.table}: its rows are ordered by {name} as {there!r}, and the group's as {kind!r}; "
            "of two such rows nobody knows the later one, and an older change would replace a later one; "
            f"accepted: {there!r}; or to stop all groups that write there, once they have no lag, and to have whatever "
            f"comes count as later: {'; '.join(self._forget(table, name) for table in filled)}; "
            f"or to begin anew: stop them, TRUNCATE {', '.join(filled)}, and reset the group to its first messages"
        )


def _has_column(connection: Connection[tuple[Any, ...]], table: str, name: str) -> bool:
    found = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s AND attnum > 0 "
        "AND NOT attisdropped)",
        (table, name),
    ).fetchone()
    return found is not None and bool(found[0])
