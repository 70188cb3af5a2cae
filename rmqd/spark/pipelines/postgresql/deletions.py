"""The SQL of the sink `postgresql` for rows that may be deletions. No I/O.

A deleted key leaves no row in the table that could be compared with an older change. So a second table keeps the keys
of deletions and their order columns: an older row of the key is skipped, a later row replaces the deletion.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rmqd.spark.pipelines.postgresql.statements import Statements, later, listed, quoted

DELETED_AT: Final = "rmqd_deleted_at"
"""An additional column of the table of deletions: when the deletion was written, by the database's clock."""


@dataclass(frozen=True, slots=True)
class Deletions:
    """The statements of a group for a table if a column of its rows marks deletions."""

    statements: Statements

    @property
    def name(self) -> str:
        """The name of the table of deletions. All groups that write to the table use the same name."""
        return self.statements.companion("rmqd_deleted_")

    @property
    def table(self) -> str:
        """The full name of the table of deletions."""
        return self.statements.beside(self.name)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row that are stored."""
        return tuple(dict.fromkeys((*self.statements.keys, *self.statements.order_by)))

    def make(self) -> Iterable[str]:
        """Create the table of deletions, with the types of the table's columns."""
        yield (
            f"CREATE TABLE {self.table} AS SELECT {listed(self.columns)}, now() AS {DELETED_AT} "
            f"FROM {self.statements.target} WITH NO DATA"
        )
        yield f"ALTER TABLE {self.table} ADD PRIMARY KEY ({listed(self.statements.keys)})"

    def lock(self) -> str:
        """Serialize the groups that write to the table, so that no group misses an uncommitted deletion of another."""
        return f"LOCK TABLE {self.table} IN SHARE ROW EXCLUSIVE MODE"

    def move(self, epoch: int, part: range | None = None) -> str:
        """Apply the rows of attempts, and return the number of keys with a later row or a later deletion.

        Parameter: the attempts. All parts of the statement see the tables as they were before it, and no two parts
        touch the same row, because only one row of each key counts.
        """
        statements = self.statements
        keys, deleted = listed(statements.keys), f"{quoted(statements.delete_column)} IS TRUE"
        kept, stored = listed(self.columns), listed(statements.columns)
        changes = ", ".join(f"{quoted(name)} = EXCLUDED.{quoted(name)}" for name in self.columns)
        return (
            f"WITH latest AS MATERIALIZED (SELECT DISTINCT ON ({keys}) {listed(statements.staged)} "
            f"{statements.chosen(epoch, part)} ORDER BY {statements.newest()}), "
            f"coming AS MATERIALIZED (SELECT * FROM latest c WHERE NOT EXISTS (SELECT FROM {self.table} d "
            f"WHERE {self._same('d', 'c')} AND {self._later('d', 'c')})), "
            f"removed AS (DELETE FROM {statements.target} t USING coming c WHERE c.{deleted} "
            f"AND {self._same('t', 'c')} AND NOT {self._later('t', 'c')}), "
            f"noted AS (INSERT INTO {self.table} ({kept}, {DELETED_AT}) SELECT {kept}, now() FROM coming c "
            f"WHERE c.{deleted} AND NOT EXISTS (SELECT FROM {statements.target} t "
            f"WHERE {self._same('t', 'c')} AND {self._later('t', 'c')}) "
            f"ON CONFLICT ({keys}) DO UPDATE SET {changes}, {DELETED_AT} = EXCLUDED.{DELETED_AT} RETURNING 1), "
            f"back AS (DELETE FROM {self.table} d USING coming c WHERE (c.{deleted}) IS FALSE "
            f"AND {self._same('d', 'c')}), "
            f"stored AS (INSERT INTO {statements.target} AS t ({stored}) SELECT {stored} FROM coming c "
            f"WHERE (c.{deleted}) IS FALSE{statements.on_conflict()} RETURNING 1) "
            "SELECT (SELECT count(*) FROM latest) - (SELECT count(*) FROM noted) - (SELECT count(*) FROM stored)"
        )

    def _same(self, one: str, other: str) -> str:
        """Return the condition that two rows have the same key."""
        return " AND ".join(f"{one}.{quoted(name)} = {other}.{quoted(name)}" for name in self.statements.keys)

    def _later(self, one: str, other: str) -> str:
        """Return the condition that row `one` is later."""
        return f"({later(one, other, self.statements.order_by)})"
