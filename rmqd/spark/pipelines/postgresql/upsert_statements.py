"""The SQL of the sink `postgresql`. No I/O.

A row may delete its key, which leaves no row in the table that could be compared with an older change. So a second
table keeps the keys of deletions and their order columns: an older row of the key is skipped, a later row replaces the
deletion.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from rmqd.handler_api.destinations.upsert_sql import (
    later_row_condition,
    on_conflict_clause,
    quote_identifier,
    quote_identifiers,
)

DELETED_AT_COLUMN: Final = "rmqd_deleted_at"
"""An additional column of the table of deletions: when the deletion was written, by the database's clock."""
ATTEMPT_COLUMN: Final = "rmqd_attempt"
"""A column of the staging table: the task attempt that copied the row."""
ROW_COLUMN: Final = "rmqd_row"
"""A column of the staging table: the position of the row in the batch, by partition."""
OFFSET_COLUMN: Final = "rmqd_queue_offset"
MESSAGE_COLUMNS: Final = ("rmqd_topic", "rmqd_broker", "rmqd_queue_id", OFFSET_COLUMN)
REASON_COLUMN: Final = "rmqd_reason"
"""A column of the staging table: why the row is refused; null if it is not."""
CONTENT_COLUMN: Final = "rmqd_content"
_MORE: Final = {
    ROW_COLUMN: "bigint",
    **dict(zip(MESSAGE_COLUMNS, ("text", "text", "integer", "bigint"), strict=True)),
    REASON_COLUMN: "text",
    CONTENT_COLUMN: "text",
}  # fmt: skip
STAGING_COLUMNS: Final = (ATTEMPT_COLUMN, *_MORE)
_LONGEST_NAME: Final = 63  # bytes; PostgreSQL's limit
BATCHES_TABLE: Final = "rmqd_batches"


@dataclass(frozen=True, slots=True)
class UpsertStatements:
    """The statements of one group for one table. A driver is identified by its epoch."""

    writer: str
    """The group's name."""
    schema: str
    table: str
    staged_columns: tuple[str, ...]
    """The columns of the rows, in their order."""
    keys: tuple[str, ...] = ()
    """Key columns: a row replaces the row with the same key. If empty, rows are appended."""
    order_by: tuple[str, ...] = ()
    """Columns that determine the later of two rows with the same key."""
    delete_column: str = ""
    """A column of the rows, not of the table: whether the row deletes its key."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name in self.staged_columns if name != self.delete_column)

    @property
    def target_table(self) -> str:
        return self.qualified(self.table)

    @property
    def batches_table(self) -> str:
        return f"{quote_identifier(self.schema)}.{BATCHES_TABLE}"

    @property
    def staging_prefix(self) -> str:
        """Prefix of all staging tables of this group and table. PostgreSQL limits names to 63 bytes."""
        digest = hashlib.sha256(f"{self.writer}\0{self.table}".encode()).hexdigest()[:16]
        return f"rmqd_staged_{digest}_"

    def staging_table(self, epoch: int) -> str:
        return self.qualified(f"{self.staging_prefix}{epoch}")

    def qualified(self, name: str) -> str:
        """The full name of another table in the same schema."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(name)}"

    def companion_table(self, prefix: str) -> str:
        """Return the name of a table next to the table. All groups that write to the table use the same name."""
        whole = f"{prefix}{self.table}"
        if len(whole.encode()) <= _LONGEST_NAME:
            return whole
        return f"{prefix}{hashlib.sha256(self.table.encode()).hexdigest()[:16]}"

    @property
    def refused_table(self) -> str:
        return self.qualified(self.companion_table("rmqd_refused_"))

    @property
    def deletions_table(self) -> str:
        """The table of deletions."""
        return self.qualified(self.companion_table("rmqd_deleted_"))

    @property
    def deletion_columns(self) -> tuple[str, ...]:
        """The columns of a row that are stored with its deletion."""
        return tuple(dict.fromkeys((*self.keys, *self.order_by)))

    def create_deletions_table(self) -> tuple[str, str]:
        """Create the table of deletions, with the types of the table's columns."""
        return (
            f"CREATE TABLE {self.deletions_table} AS "
            f"SELECT {quote_identifiers(self.deletion_columns)}, now() AS {DELETED_AT_COLUMN} "
            f"FROM {self.target_table} WITH NO DATA",
            f"ALTER TABLE {self.deletions_table} ADD PRIMARY KEY ({quote_identifiers(self.keys)})",
        )

    def lock_deletions_table(self) -> str:
        """Serialize the groups that write to the table, so that no group misses an uncommitted deletion of another."""
        return f"LOCK TABLE {self.deletions_table} IN SHARE ROW EXCLUSIVE MODE"

    def create_staging_table(self, epoch: int) -> str:
        """Create a driver's staging table. After a crash of the database it may be empty; the batch is repeated."""
        delete = f", false AS {quote_identifier(self.delete_column)}" if self.delete_column else ""
        more = ", ".join(f"NULL::{kind} AS {name}" for name, kind in _MORE.items())
        return (
            f"CREATE UNLOGGED TABLE {self.staging_table(epoch)} AS "
            f"SELECT ''::text AS {ATTEMPT_COLUMN}, {quote_identifiers(self.columns)}"
            f"{delete}, {more} "
            f"FROM {self.target_table} WITH NO DATA"
        )

    def copy_rows(self, epoch: int) -> str:
        """Copy rows to the staging table, each after its attempt, its position in the batch, and its message."""
        columns = quote_identifiers((ATTEMPT_COLUMN, ROW_COLUMN, *MESSAGE_COLUMNS, *self.staged_columns))
        return f"COPY {self.staging_table(epoch)} ({columns}) FROM STDIN"

    def refuse_row(self, epoch: int) -> str:
        """Stage a refused row; parameters as for `copy_rows`, but reason and content instead of the row's columns."""
        names = (ATTEMPT_COLUMN, ROW_COLUMN, *MESSAGE_COLUMNS, REASON_COLUMN, CONTENT_COLUMN)
        marks = ", ".join(["%s"] * len(names))
        return f"INSERT INTO {self.staging_table(epoch)} ({quote_identifiers(names)}) VALUES ({marks})"

    def from_staged_rows(self, epoch: int, part: range | None = None) -> str:
        """Return the FROM clause of the staged rows that are not refused, optionally of a part of the batch."""
        between = "" if part is None else f" AND {ROW_COLUMN} >= {part.start} AND {ROW_COLUMN} < {part.stop}"
        return f"FROM {self.staging_table(epoch)} WHERE {ATTEMPT_COLUMN} = ANY(%s) AND {REASON_COLUMN} IS NULL{between}"

    def order_newest_first(self) -> str:
        """Return the ORDER BY that puts the last row of each key first. Ties are broken by offset, then position."""
        columns = [
            quote_identifiers(self.keys),
            *(f"{quote_identifier(name)} DESC NULLS LAST" for name in self.order_by),
        ]
        return ", ".join([*columns, f"{OFFSET_COLUMN} DESC NULLS LAST", f"{ROW_COLUMN} DESC"])

    def move_rows(self, epoch: int, part: range | None = None) -> str:
        """Move the rows of attempts to the table, and return the number of keys with a later row or a later deletion.

        Parameter: the attempts.
        """
        if self.delete_column:
            return self._move_with_deletions(epoch, part)
        stored = quote_identifiers(self.columns)
        insert = f"INSERT INTO {self.target_table} AS t ({stored}) SELECT {stored}"
        staged = self.from_staged_rows(epoch, part)
        if not self.order_by or set(self.columns) <= set(self.keys):
            return f"WITH stored AS ({insert} {staged}{self.on_conflict()}) SELECT 0"
        return (
            f"WITH latest AS MATERIALIZED (SELECT DISTINCT ON ({quote_identifiers(self.keys)}) {stored} {staged} "
            f"ORDER BY {self.order_newest_first()}), stored AS ({insert} FROM latest{self.on_conflict()} RETURNING 1) "
            "SELECT (SELECT count(*) FROM latest) - (SELECT count(*) FROM stored)"
        )

    def _move_with_deletions(self, epoch: int, part: range | None) -> str:
        """Return `move_rows` for rows that may be deletions.

        All parts of the statement see the tables as they were before it, and no two parts touch the same row, because
        only one row of each key counts.
        """
        keys, deleted, deletions = (
            quote_identifiers(self.keys),
            f"{quote_identifier(self.delete_column)} IS TRUE",
            self.deletions_table,
        )
        kept, stored = quote_identifiers(self.deletion_columns), quote_identifiers(self.columns)
        changes = ", ".join(
            f"{quote_identifier(name)} = EXCLUDED.{quote_identifier(name)}" for name in self.deletion_columns
        )
        return (
            f"WITH latest AS MATERIALIZED (SELECT DISTINCT ON ({keys}) {quote_identifiers(self.staged_columns)} "
            f"{self.from_staged_rows(epoch, part)} ORDER BY {self.order_newest_first()}), "
            f"coming AS MATERIALIZED (SELECT * FROM latest c WHERE NOT EXISTS (SELECT FROM {deletions} d "
            f"WHERE {self._same('d')} AND {self._later('d')})), "
            f"removed AS (DELETE FROM {self.target_table} t USING coming c WHERE c.{deleted} "
            f"AND {self._same('t')} AND NOT {self._later('t')}), "
            f"noted AS (INSERT INTO {deletions} ({kept}, {DELETED_AT_COLUMN}) SELECT {kept}, now() FROM coming c "
            f"WHERE c.{deleted} AND NOT EXISTS (SELECT FROM {self.target_table} t "
            f"WHERE {self._same('t')} AND {self._later('t')}) "
            f"ON CONFLICT ({keys}) DO UPDATE SET {changes}, "
            f"{DELETED_AT_COLUMN} = EXCLUDED.{DELETED_AT_COLUMN} RETURNING 1), "
            f"back AS (DELETE FROM {deletions} d USING coming c WHERE (c.{deleted}) IS FALSE "
            f"AND {self._same('d')}), "
            f"stored AS (INSERT INTO {self.target_table} AS t ({stored}) SELECT {stored} FROM coming c "
            f"WHERE (c.{deleted}) IS FALSE{self.on_conflict()} RETURNING 1) "
            "SELECT (SELECT count(*) FROM latest) - (SELECT count(*) FROM noted) - (SELECT count(*) FROM stored)"
        )

    def _same(self, row: str) -> str:
        """Return the condition that a row has the key of the coming row."""
        return " AND ".join(f"{row}.{quote_identifier(name)} = c.{quote_identifier(name)}" for name in self.keys)

    def _later(self, row: str) -> str:
        """Return the condition that a row is later than the coming row."""
        return f"({later_row_condition(row, 'c', self.order_by)})"

    def on_conflict(self) -> str:
        return on_conflict_clause(self.columns, self.keys, self.order_by)
