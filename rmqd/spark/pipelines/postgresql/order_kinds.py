"""Records the meaning of the values in a table's order columns. Values of different meaning cannot be compared.

A pipeline describes a column in the metadata `rmqd.order`, in which `{topics}` stands for the group's topics. The
record is in a table next to the sink's table, for all groups that write there, and contains the topics of all of them.
The transaction of a batch holds a shared lock on it, so it changes only between batches.

Offsets of two topics are not comparable, which is harmless if no key is in both. The record cannot know that. It
assumes that an additional topic has other keys, and that a topic which replaces others has the same keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class OrderKind:
    """The meaning of the values in a group's order column."""

    told: str
    """The description; contains `{topics}` if the values are offsets in topics."""
    topics: frozenset[str] = frozenset()
    """The group's topics."""

    @property
    def text(self) -> str:
        """The description as recorded if no other group writes to the table."""
        return self._of(self.topics)

    def covered_by(self, noted: str) -> bool:
        """Return whether the recorded description is the same, possibly with more topics."""
        there = self._topics_in(noted)
        return noted == self.text or (there is not None and self.topics <= there)

    def beside(self, noted: str) -> str | None:
        """Return the description to record for the rows of both; None if they are not comparable."""
        if self.covered_by(noted):
            return noted
        there = self._topics_in(noted)
        return self.text if there is not None and there <= self.topics else None

    def joined(self, noted: str) -> str | None:
        """Return the recorded description with the topics of both; None if they differ in more than topics."""
        there = self._topics_in(noted)
        return None if there is None else self._of(there | self.topics)

    def _of(self, topics: Iterable[str]) -> str:
        return self.told.replace(_TOPICS, ", ".join(sorted(topics)))

    def _topics_in(self, noted: str) -> frozenset[str] | None:
        first, *others = map(re.escape, self.told.split(_TOPICS))
        found = re.fullmatch(f"{first}(.+)" + r"\1".join(others), noted) if others else None
        return None if found is None else frozenset(found[1].split(", "))


def kinds_of(rows: StructType, order_by: Sequence[str], topics: Sequence[str]) -> dict[str, OrderKind]:
    """Return the meaning of each order column that the pipeline describes."""
    told = {field.name: field.metadata or {} for field in rows.fields}
    return {
        name: OrderKind(str(told[name][METADATA]), frozenset(topics))
        for name in order_by
        if told.get(name, {}).get(METADATA)
    }


@dataclass(frozen=True, slots=True)
class OrderKinds:
    """The meanings of a group's order columns, compared with the record of their table."""

    statements: Statements
    kinds: Mapping[str, OrderKind]
    """By column name."""

    @property
    def table(self) -> str:
        """The full name of the table that contains the record."""
        return self.statements.beside(_NAME)

    def note(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Record the descriptions, in a transaction.

        Raises ConfigError if the table has rows with values of another meaning.
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
            connection.execute(
                f"INSERT INTO {self.table} VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", (*place, kind.text)
            )
            there = self._noted(connection, name, "UPDATE") or kind.text
            noted = kind.beside(there)
            if noted is None and (filled := list(self._filled(connection, name))):
                raise ConfigError([self._problem(name, kind, there, filled)])
            if noted != there:
                connection.execute(
                    f"UPDATE {self.table} SET kind = %s WHERE target = %s AND column_name = %s",
                    (noted or kind.text, *place),
                )

    def see(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Lock the record until the transaction ends. Raises RmqdError if another group has changed it."""
        for name, kind in self.kinds.items():
            there = self._noted(connection, name, "SHARE")
            if there is not None and not kind.covered_by(there):
                raise RmqdError(
                    f"{self.statements.table}: another group now orders its rows by {name} as {there!r}, and this "
                    f"group as {kind.text!r}; run only one of the groups, or use the same order in both"
                    f"{self._joining(name, kind, there)}"
                )

    def _noted(self, connection: Connection[tuple[Any, ...]], name: str, lock: str) -> str | None:
        found = connection.execute(
            f"SELECT kind FROM {self.table} WHERE target = %s AND column_name = %s FOR {lock}",
            (self.statements.table, name),
        ).fetchone()
        return None if found is None else str(found[0])

    def _filled(self, connection: Connection[tuple[Any, ...]], name: str) -> Iterator[str]:
        """Yield the tables with a value in the order column. Null is comparable with everything.

        The table of deletions is checked even for a group without `delete_column`, because another group may have
        written it. It has the column only if that group uses the same order column.
        """
        deletions = Deletions(self.statements).table
        for table in (self.statements.target, deletions):
            if table == deletions and not _has_column(connection, table, name):
                continue
            found = connection.execute(f"SELECT EXISTS (SELECT FROM {table} WHERE {quoted(name)} IS NOT NULL)")
            if (row := found.fetchone()) is not None and row[0]:
                yield table

    def _forget(self, table: str, name: str) -> str:
        """Return the statement that removes the values of the order column; deletions contain nothing else."""
        is_target = table == self.statements.target
        return f"UPDATE {table} SET {quoted(name)} = NULL" if is_target else f"TRUNCATE {table}"

    def _joining(self, name: str, kind: OrderKind, there: str) -> str:
        """Return the additional remedy if only the topics differ, or an empty string."""
        if (joined := kind.joined(there)) is None:
            return ""
        where = {"target": self.statements.table, "column_name": name, "kind": there}
        found = " AND ".join(f"{column} = {_literal(value)}" for column, value in where.items())
        return (
            "; or, if no key is in two of the topics, as with shards, record all topics: "
            f"UPDATE {self.table} SET kind = {_literal(joined)} WHERE {found}"
        )

    def _problem(self, name: str, kind: OrderKind, there: str, filled: Sequence[str]) -> str:
        return (
            f"sink {self.statements.table}: its rows are ordered by {name} as {there!r}, and the rows of the group as "
            f"{kind.text!r}, so they cannot be compared, and an older change would replace a later one; "
            f"expected {there!r}{self._joining(name, kind, there)}; or, to let all new changes count as later, wait "
            "until no group that writes there has lag, stop these groups, and run "
            f"{'; '.join(self._forget(table, name) for table in filled)}; "
            f"or, to start over, stop them, run TRUNCATE {', '.join(filled)}, and reset the group to its first messages"
        )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _has_column(connection: Connection[tuple[Any, ...]], table: str, name: str) -> bool:
    found = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = %s AND attnum > 0 "
        "AND NOT attisdropped)",
        (table, name),
    ).fetchone()
    return found is not None and bool(found[0])
