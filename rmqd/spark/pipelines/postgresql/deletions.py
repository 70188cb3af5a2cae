"""The SQL of the sink `postgresql` for rows that may be deletions. Pure.

Of a key that is deleted nothing is left in the table by which an older change could be told, so a table beside it keeps
the key and its place in the order: an older row of the key is left out, a later one takes the deletion's place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rmqd.spark.pipelines.postgresql.statements import Statements, later, listed, quoted

DELETED_AT: Final = "rmqd_deleted_at"
"""The own column of the table of deletions: when a deletion was written, by the database's clock."""


@dataclass(frozen=True, slots=True)
class Deletions:
    """What the statements of a group about a table become where a column of its rows says which are deletions."""

    statements: Statements

    @property
    def name(self) -> str:
        """The name of the table that keeps deletions: the same for all groups that write to the table."""
        return self.statements.companion("rmqd_deleted_")

    @property
    def table(self) -> str:
        """Its full name."""
        return self.statements.beside(self.name)

    @property
    def columns(self) -> tuple[str, ...]:
        """What it keeps of a row."""
        return tuple(dict.fromkeys((*self.statements.keys, *self.statements.order_by)))

    def make(self) -> Iterable[str]:
        """Make it, with the types of the table's columns."""
        yield (
            f"CREATE TABLE {self.table} AS SELECT {listed(self.columns)}, now() AS {DELETED_AT} "
            f"FROM {self.statements.target} WITH NO DATA"
        )
        yield f"ALTER TABLE {self.table} ADD PRIMARY KEY ({listed(self.statements.keys)})"

    def lock(self) -> str:
        """Have groups apply their rows one after another: none may miss a deletion that another has under way."""
        return f"LOCK TABLE {self.table} IN SHARE ROW EXCLUSIVE MODE"

    def move(self, epoch: int, part: range | None = None) -> str:
        """Apply the rows of attempts to the table, and tell of how many keys it has something later, or a later
        deletion; parameter: the attempts.

        All parts see the tables as they were before, and no two touch one row: of each key one row counts.
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
        """Whether two rows are of one key."""
        return " AND ".join(f"{one}.{quoted(name)} = {other}.{quoted(name)}" for name in self.statements.keys)

    def _later(self, one: str, other: str) -> str:
        """Whether the first of two rows is later."""
        return f"({later(one, other, self.statements.order_by)})"
