"""The SQL of the sink `postgresql`. No I/O.

A row of a pipeline may delete the table's row with the same key. Then the table has no row that could be compared with
an older change of the key. So the table of deletions keeps deleted keys with their order columns. An older row with a
deleted key is skipped, and a later row replaces the deletion.
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
"""A column of the table of deletions: when the deletion was written, by the database's clock."""
ATTEMPT_COLUMN: Final = "rmqd_attempt"
"""A column of the staging table: the random id of the task attempt that copied the row."""
ROW_COLUMN: Final = "rmqd_row"
"""A column of the staging table: the row's number. It orders rows by partition, then by position in the partition."""
OFFSET_COLUMN: Final = "rmqd_queue_offset"
MESSAGE_COLUMNS: Final = ("rmqd_topic", "rmqd_broker", "rmqd_queue_id", OFFSET_COLUMN)
REASON_COLUMN: Final = "rmqd_reason"
"""A column of the staging table: why the row was refused; null for rows that were not refused."""
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
    """The SQL statements of one group for one table. Each driver has its own `epoch`, and its own staging table."""

    writer: str
    """The group's name."""
    schema: str
    table: str
    staged_columns: tuple[str, ...]
    """The columns of the pipeline's rows, in their order."""
    keys: tuple[str, ...] = ()
    """The key columns. A row replaces the row with the same key. If empty, rows are appended."""
    order_by: tuple[str, ...] = ()
    """The columns that decide which of two rows with the same key is later."""
    delete_column: str = ""
    """The pipeline's column that says whether a row deletes its key. The table lacks this column. Empty if not used."""

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
        """The name prefix of this group's staging tables for this table. A hash keeps names within 63 bytes."""
        digest = hashlib.sha256(f"{self.writer}\0{self.table}".encode()).hexdigest()[:16]
        return f"rmqd_staged_{digest}_"

    def staging_table(self, epoch: int) -> str:
        return self.qualified(f"{self.staging_prefix}{epoch}")

    def qualified(self, name: str) -> str:
        """Return the quoted name of a table, qualified with the schema of the target table."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(name)}"

    def companion_table(self, prefix: str) -> str:
        """Return the name of an auxiliary table, which all groups that write to the target table share."""
        whole = f"{prefix}{self.table}"
        if len(whole.encode()) <= _LONGEST_NAME:
            return whole
        return f"{prefix}{hashlib.sha256(self.table.encode()).hexdigest()[:16]}"

    @property
    def refused_table(self) -> str:
        return self.qualified(self.companion_table("rmqd_refused_"))

    @property
    def deletions_table(self) -> str:
        """The table with the deleted keys and their order columns."""
        return self.qualified(self.companion_table("rmqd_deleted_"))

    @property
    def deletion_columns(self) -> tuple[str, ...]:
        """The columns of a deleting row that the table of deletions stores: the keys and the order columns."""
        return tuple(dict.fromkeys((*self.keys, *self.order_by)))

    def create_deletions_sql(self) -> tuple[str, str]:
        """Return the statements that create the table of deletions, with the column types of the target table."""
        return (
            f"CREATE TABLE {self.deletions_table} AS "
            f"SELECT {quote_identifiers(self.deletion_columns)}, now() AS {DELETED_AT_COLUMN} "
            f"FROM {self.target_table} WITH NO DATA",
            f"ALTER TABLE {self.deletions_table} ADD PRIMARY KEY ({quote_identifiers(self.keys)})",
        )

    def lock_deletions_sql(self) -> str:
        """Return the statement that lets groups write one after another, so that no group misses a deletion."""
        return f"LOCK TABLE {self.deletions_table} IN SHARE ROW EXCLUSIVE MODE"

    def create_staging_sql(self, epoch: int) -> str:
        """Return the statement for an unlogged staging table. If a database crash empties it, the batch is repeated."""
        delete = f", false AS {quote_identifier(self.delete_column)}" if self.delete_column else ""
        more = ", ".join(f"NULL::{kind} AS {name}" for name, kind in _MORE.items())
        return (
            f"CREATE UNLOGGED TABLE {self.staging_table(epoch)} AS "
            f"SELECT ''::text AS {ATTEMPT_COLUMN}, {quote_identifiers(self.columns)}{delete}, {more} "
            f"FROM {self.target_table} WITH NO DATA"
        )

    def copy_rows_sql(self, epoch: int) -> str:
        """Return the COPY statement for rows with attempt, row number, MESSAGE_COLUMNS, and the pipeline's columns."""
        columns = quote_identifiers((ATTEMPT_COLUMN, ROW_COLUMN, *MESSAGE_COLUMNS, *self.staged_columns))
        return f"COPY {self.staging_table(epoch)} ({columns}) FROM STDIN"

    def refuse_row_sql(self, epoch: int) -> str:
        """Return the INSERT for a refused row. Its parameters are attempt, number, MESSAGE_COLUMNS, reason, content."""
        names = (ATTEMPT_COLUMN, ROW_COLUMN, *MESSAGE_COLUMNS, REASON_COLUMN, CONTENT_COLUMN)
        marks = ", ".join(f"${number}" for number in range(1, len(names) + 1))
        return f"INSERT INTO {self.staging_table(epoch)} ({quote_identifiers(names)}) VALUES ({marks})"

    def staged_rows_clause(self, epoch: int, part: range | None = None) -> str:
        """Return FROM and WHERE for accepted rows. The parameter is a list of attempts; `part` limits row numbers."""
        between = "" if part is None else f" AND {ROW_COLUMN} >= {part.start} AND {ROW_COLUMN} < {part.stop}"
        return f"FROM {self.staging_table(epoch)} WHERE {ATTEMPT_COLUMN} = ANY($1) AND {REASON_COLUMN} IS NULL{between}"

    def newest_first_clause(self) -> str:
        """Return ORDER BY columns that put each key's latest row first: by order columns, then offset, then number."""
        columns = [
            quote_identifiers(self.keys),
            *(f"{quote_identifier(name)} DESC NULLS LAST" for name in self.order_by),
        ]
        return ", ".join([*columns, f"{OFFSET_COLUMN} DESC NULLS LAST", f"{ROW_COLUMN} DESC"])

    def move_rows_sql(self, epoch: int, part: range | None = None) -> str:
        """Return the statement that moves staged rows to the target table. Parameters as in `staged_rows_clause`.

        The statement returns the number of keys that it skipped because the table has a later row or a later deletion.
        """
        if self.delete_column:
            return self._move_with_deletions(epoch, part)
        stored = quote_identifiers(self.columns)
        insert = f"INSERT INTO {self.target_table} AS t ({stored}) SELECT {stored}"
        staged = self.staged_rows_clause(epoch, part)
        if not self.order_by or set(self.columns) <= set(self.keys):
            return f"WITH stored AS ({insert} {staged}{self.on_conflict()}) SELECT 0"
        return (
            f"WITH latest AS MATERIALIZED (SELECT DISTINCT ON ({quote_identifiers(self.keys)}) {stored} {staged} "
            f"ORDER BY {self.newest_first_clause()}), stored AS ({insert} FROM latest{self.on_conflict()} RETURNING 1) "
            "SELECT (SELECT count(*) FROM latest) - (SELECT count(*) FROM stored)"
        )

    def _move_with_deletions(self, epoch: int, part: range | None) -> str:
        """Return the statement of `move_rows_sql` for rows that may be deletions.

        All parts of the statement see the tables as they were before the statement. No two parts change the same row,
        because only the latest row of each key is used.
        """
        keys, deletions = quote_identifiers(self.keys), self.deletions_table
        deleted = f"{quote_identifier(self.delete_column)} IS TRUE"
        kept, stored = quote_identifiers(self.deletion_columns), quote_identifiers(self.columns)
        names = map(quote_identifier, self.deletion_columns)
        changes = ", ".join(f"{name} = EXCLUDED.{name}" for name in names)
        return (
            f"WITH latest AS MATERIALIZED (SELECT DISTINCT ON ({keys}) {quote_identifiers(self.staged_columns)} "
            f"{self.staged_rows_clause(epoch, part)} ORDER BY {self.newest_first_clause()}), "
            f"coming AS MATERIALIZED (SELECT * FROM latest c WHERE NOT EXISTS (SELECT FROM {deletions} d "
            f"WHERE {self._same('d')} AND {self._later('d')})), "
            f"removed AS (DELETE FROM {self.target_table} t USING coming c WHERE c.{deleted} "
            f"AND {self._same('t')} AND NOT {self._later('t')}), "
            f"noted AS (INSERT INTO {deletions} ({kept}, {DELETED_AT_COLUMN}) SELECT {kept}, now() FROM coming c "
            f"WHERE c.{deleted} AND NOT EXISTS (SELECT FROM {self.target_table} t "
            f"WHERE {self._same('t')} AND {self._later('t')}) ON CONFLICT ({keys}) DO UPDATE SET {changes}, "
            f"{DELETED_AT_COLUMN} = EXCLUDED.{DELETED_AT_COLUMN} RETURNING 1), "
            f"back AS (DELETE FROM {deletions} d USING coming c WHERE (c.{deleted}) IS FALSE AND {self._same('d')}), "
            f"stored AS (INSERT INTO {self.target_table} AS t ({stored}) SELECT {stored} FROM coming c "
            f"WHERE (c.{deleted}) IS FALSE{self.on_conflict()} RETURNING 1) "
            "SELECT (SELECT count(*) FROM latest) - (SELECT count(*) FROM noted) - (SELECT count(*) FROM stored)"
        )

    def _same(self, row: str) -> str:
        """Return the condition that the row with the alias `row` has the same key as the staged row `c`."""
        return " AND ".join(f"{row}.{quote_identifier(name)} = c.{quote_identifier(name)}" for name in self.keys)

    def _later(self, row: str) -> str:
        """Return the condition that the row with the alias `row` is later than the staged row `c`."""
        return f"({later_row_condition(row, 'c', self.order_by)})"

    def on_conflict(self) -> str:
        return on_conflict_clause(self.columns, self.keys, self.order_by)
