"""The note of what a table's order counts by: a row that counts by something else is neither later nor earlier.

A pipeline tells it of a column by the metadata `rmqd.order`, in which `{topics}` are the group's. The note is beside
the table, for all groups that write there, and has the topics of all of them. The transaction of a batch has a share of
it: so it becomes another one only when none is under way.

Places in two topics never compare, which harms nobody where no key is in both. Whether one is, the note cannot tell: it
takes a topic beside those that were there for one with keys of its own, and one instead of them for one with theirs.
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
    """What a column of a group's order counts by."""

    told: str
    """With `{topics}`, where places are those in topics."""
    topics: frozenset[str] = frozenset()
    """The group's."""

    @property
    def text(self) -> str:
        """As it is noted where no other group is."""
        return self._of(self.topics)

    def covered_by(self, noted: str) -> bool:
        """Whether the note has it, maybe with more topics."""
        there = self._topics_in(noted)
        return noted == self.text or (there is not None and self.topics <= there)

    def beside(self, noted: str) -> str | None:
        """What is to be noted of rows of both; none if they do not compare."""
        if self.covered_by(noted):
            return noted
        there = self._topics_in(noted)
        return self.text if there is not None and there <= self.topics else None

    def joined(self, noted: str) -> str | None:
        """The note with the topics of both; none if more than topics differ."""
        there = self._topics_in(noted)
        return None if there is None else self._of(there | self.topics)

    def _of(self, topics: Iterable[str]) -> str:
        return self.told.replace(_TOPICS, ", ".join(sorted(topics)))

    def _topics_in(self, noted: str) -> frozenset[str] | None:
        first, *others = map(re.escape, self.told.split(_TOPICS))
        found = re.fullmatch(f"{first}(.+)" + r"\1".join(others), noted) if others else None
        return None if found is None else frozenset(found[1].split(", "))


def kinds_of(rows: StructType, order_by: Sequence[str], topics: Sequence[str]) -> dict[str, OrderKind]:
    """What each column of the order counts by, of those of which the pipeline tells it."""
    told = {field.name: field.metadata or {} for field in rows.fields}
    return {
        name: OrderKind(str(told[name][METADATA]), frozenset(topics))
        for name in order_by
        if told.get(name, {}).get(METADATA)
    }


@dataclass(frozen=True, slots=True)
class OrderKinds:
    """What the order of a group's rows counts by, beside what is noted for their table."""

    statements: Statements
    kinds: Mapping[str, OrderKind]
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
        """Have it stay as it is until the transaction ends. Raises RmqdError where another group has changed it."""
        for name, kind in self.kinds.items():
            there = self._noted(connection, name, "SHARE")
            if there is not None and not kind.covered_by(there):
                raise RmqdError(
                    f"{self.statements.table}: another group has begun to order its rows by {name} as {there!r}, and "
                    f"this one does as {kind.text!r}; accepted: one of the groups, or the same order in both"
                    f"{self._joining(name, kind, there)}"
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

    def _joining(self, name: str, kind: OrderKind, there: str) -> str:
        """The way out that is one where nothing but topics differ."""
        if (joined := kind.joined(there)) is None:
            return ""
        where = {"target": self.statements.table, "column_name": name, "kind": there}
        found = " AND ".join(f"{column} = {_literal(value)}" for column, value in where.items())
        return (
            "; or, where no key is in two of the topics, as with shards, to have them all count: "
            f"UPDATE {self.table} SET kind = {_literal(joined)} WHERE {found}"
        )

    def _problem(self, name: str, kind: OrderKind, there: str, filled: Sequence[str]) -> str:
        return (
            f"sink {self.statements.table}: its rows are ordered by {name} as {there!r}, and the group's as "
            f"{kind.text!r}; of two such rows nobody knows the later one, and an older change would replace a later "
            f"one; accepted: {there!r}{self._joining(name, kind, there)}; or to stop all groups that write there, once "
            "they have no lag, and to have whatever comes count as later: "
            f"{'; '.join(self._forget(table, name) for table in filled)}; "
            f"or to begin anew: stop them, TRUNCATE {', '.join(filled)}, and reset the group to its first messages"
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
