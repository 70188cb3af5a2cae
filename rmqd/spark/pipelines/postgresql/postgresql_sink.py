"""The driver's part of the sink `postgresql`: one transaction stores the rows of a batch, and records the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg
import structlog
from psycopg import Connection
from pyspark.sql.types import StructType

from rmqd.errors import ConfigError, RmqdError
from rmqd.handler_api.destinations.upsert_sql import PLACE_COLUMN
from rmqd.spark.pipelines.pipeline_counts import MicroBatch
from rmqd.spark.pipelines.postgresql.order_kinds import COPY_RESULT_DDL, OrderColumns, RowCopier, order_columns_of
from rmqd.spark.pipelines.postgresql.table_shape import (
    conninfo_of,
    create_if_missing,
    db_error,
    is_row_refused,
    one_line,
    open_connection,
    read_shape,
)
from rmqd.spark.pipelines.postgresql.upsert_statements import (
    ATTEMPT_COLUMN,
    BATCHES_TABLE,
    CONTENT_COLUMN,
    MESSAGE_COLUMNS,
    REASON_COLUMN,
    ROW_COLUMN,
    STAGING_COLUMNS,
    UpsertStatements,
)
from rmqd.spark.sink.sink_rows import source_place_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rmqd.config.model.spark_model import SinkConfig

log = structlog.get_logger(__name__)

# lock timeout of optional cleanup, because the connection of a lost task can lock a staging table for minutes
LOCK_TIMEOUT_SECONDS: Final = 5


class PostgresqlSink:
    """The target table of one group's pipeline. Used on the driver, by one query at a time.

    Methods raise RmqdError with the database's error.
    """

    def __init__(self, sink: SinkConfig, options: Mapping[str, str], writer: str, topics: Sequence[str] = ()) -> None:
        """`writer` is the group's name, because several groups may write to the table. `options` are for libpq.

        `topics` are the topics of the group.
        """
        self._sink = sink
        self._conninfo = conninfo_of(sink.url, options, writer)
        self._writer = writer
        self._topics = topics
        self._where = sink.table
        self._statements = UpsertStatements(writer, "", sink.table, ())
        self._order_kinds = OrderColumns(self._statements, {})
        self._json_columns: frozenset[str] = frozenset()
        self._epoch = 0

    def prepare(self, schema: StructType) -> None:
        """Check that the table can store rows of this schema, and create the missing auxiliary tables.

        After this call, batches of previous drivers are refused. Raises ConfigError with all problems.
        """
        sink = self._sink
        schema = _without(schema, PLACE_COLUMN)
        stored = _without(schema, sink.delete_column)
        with self._connected() as connection:
            shape = read_shape(connection, sink.table, stored)
            problems = [*_delete_problems(schema, sink), *shape.problems_with(stored, sink.keys, sink.order_by)]
            if problems:
                raise ConfigError([f"sink {sink.table}: {problem}" for problem in problems])
            self._json_columns = shape.json_columns(stored)
            self._statements = UpsertStatements(
                self._writer,
                shape.schema,
                shape.table,
                tuple(schema.fieldNames()),
                tuple(sink.keys),
                tuple(sink.order_by),
                sink.delete_column,
            )
            self._order_kinds = OrderColumns(self._statements, order_columns_of(schema, sink.order_by, self._topics))
            with connection.transaction():
                self._epoch = self._next_epoch(connection)
                if sink.delete_column:
                    self._make_deletions_table(connection)
                if self._leaves_out:
                    refused = self._statements.refused_table
                    columns = "broker text, queue_id integer, queue_offset bigint, reason text, content text"
                    create_if_missing(
                        connection,
                        refused,
                        f"CREATE TABLE {refused} (writer text, query text, batch bigint, topic text, {columns}, "
                        "refused_at timestamptz)",
                    )
                self._order_kinds.record_meanings(connection)
                connection.execute(self._statements.create_staging_sql(self._epoch))
            self._drop_former_stagings(connection)

    def refuse_previous_drivers(self) -> None:
        """Increase the epoch, so that the batches of previous drivers are refused."""
        with self._connected() as connection:
            shape = read_shape(connection, self._sink.table, StructType())  # the pipeline's columns are not known yet
            self._statements = UpsertStatements(self._writer, shape.schema, shape.table, ())
            with connection.transaction():
                self._next_epoch(connection)

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Write a batch's rows to the table, exactly once even if the batch is repeated.

        Raises RmqdError if a newer driver has started, or if the table has a later or a different batch of the query.
        """
        statements = self._statements
        with self._connected() as connection:
            if self._is_written(connection, batch, lock=False):
                # execute the plan of a written batch too, because only this updates the state of a stateful query
                frame.write.format("noop").mode("overwrite").save()
                return
        refuse = statements.refuse_row_sql(self._epoch) if self._leaves_out else ""
        keys, statement = frozenset(self._sink.keys), statements.copy_rows_sql(self._epoch)
        copy = RowCopier(self._conninfo, self._where, statement, self._json_columns, keys, refuse)
        copied = frame.mapInArrow(copy, COPY_RESULT_DDL).collect()
        with self._connected() as connection:
            with connection.transaction():
                if statements.delete_column:  # lock before reading, so that the transaction sees all earlier deletions
                    connection.execute(statements.lock_deletions_sql())
                if not self._is_written(connection, batch, lock=True):
                    self._order_kinds.lock_record(connection)
                    self._move(connection, batch, [row.attempt for row in copied], sum(row.rows for row in copied))
            if copied:
                self._if_not_held(connection, f"TRUNCATE {statements.staging_table(self._epoch)}")

    def has_batch(self, batch: MicroBatch) -> bool:
        with self._connected() as connection:
            last = self._last_batch(connection)
            return last is not None and last[1:] == (batch.query_id, batch.number, batch.offset_log_id)

    @property
    def _name(self) -> tuple[str, str]:
        return self._writer, self._statements.table

    def _connected(self) -> Any:
        return open_connection(self._conninfo, self._where)

    def _next_epoch(self, connection: Connection[tuple[Any, ...]]) -> int:
        """Increase the epoch in `rmqd_batches`, and return it. Waits for a running transaction of a previous driver."""
        batches = self._statements.batches_table
        create_if_missing(
            connection,
            batches,
            f"CREATE TABLE {batches} (writer text NOT NULL, target text NOT NULL, epoch bigint NOT NULL, query text, "
            "batch bigint, plan text, rows bigint, written_at timestamptz, PRIMARY KEY (writer, target))",
        )
        taken = connection.execute(
            f"INSERT INTO {batches} AS b (writer, target, epoch) VALUES ($1, $2, 1) "
            "ON CONFLICT (writer, target) DO UPDATE SET epoch = b.epoch + 1 RETURNING epoch",
            self._name,
        ).fetchone()
        assert taken is not None
        return int(taken[0])

    def _make_deletions_table(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Create the table of deletions if it is missing. Raises ConfigError if it lacks a key or order column."""
        statements, deletions = self._statements, self._statements.deletions_table
        if create_if_missing(connection, deletions, *statements.create_deletions_sql()):
            return
        found = connection.execute(f"SELECT * FROM {deletions} LIMIT 0").description or ()
        if missing := set(statements.deletion_columns) - {column.name for column in found}:
            raise ConfigError(
                [
                    f"sink {self._where}: {deletions}, which keeps deleted keys, has no column "
                    f"{', '.join(sorted(missing))}, because keys or order_by have changed; restore them, or run "
                    f"DROP TABLE {deletions} if no change older than a deletion can arrive"
                ]
            )

    def _drop_former_stagings(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Drop the staging tables of previous drivers. Tasks of these drivers that still copy rows fail."""
        prefix, schema = self._statements.staging_prefix, self._statements.schema
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = $1 AND starts_with(tablename, $2)", (schema, prefix)
        ).fetchall()
        for (name,) in tables:
            if int(name.removeprefix(prefix)) < self._epoch:
                self._if_not_held(connection, f"DROP TABLE IF EXISTS {self._statements.qualified(name)}")

    def _is_written(self, connection: Connection[tuple[Any, ...]], batch: MicroBatch, *, lock: bool) -> bool:
        """Return whether the batch is recorded as the last batch. `lock` locks the record until the transaction ends.

        Raises RmqdError if a newer driver has started, or if the record is a later or a different batch of the query.
        """
        last = self._last_batch(connection, " FOR UPDATE" if lock else "")
        if last is None:
            raise RmqdError(f"{self._noted} is missing: it was deleted; restart the group to create it again")
        epoch, query, number, plan = last
        if epoch != self._epoch:
            raise RmqdError(
                f"another driver of {self._writer} has started to write to {self._where}, so this driver must end: "
                f"its epoch is {self._epoch}; expected {epoch}, the latest"
            )
        if query != batch.query_id or number < batch.number:
            return False
        if (number, plan) == (batch.number, batch.offset_log_id):
            return True
        raise RmqdError(
            f"{self._where} already has batch {number} of this query, and batch {batch.number} has different "
            f"messages: was the checkpoint reset? To write the batch again, delete {self._noted}"
        )

    def _last_batch(self, connection: Connection[tuple[Any, ...]], lock: str = "") -> tuple[Any, ...] | None:
        """Return the epoch, and the last batch's query id, number and `offset_log_id`; None without a record."""
        found = (
            f"SELECT epoch, query, batch, plan FROM {self._statements.batches_table} WHERE writer = $1 AND target = $2"
        )
        return connection.execute(f"{found}{lock}", self._name).fetchone()

    def _move(self, connection: Connection[tuple[Any, ...]], batch: MicroBatch, attempts: list[str], rows: int) -> None:
        statements = self._statements
        if attempts:
            count = f"SELECT count(*) FROM {statements.staging_table(self._epoch)} WHERE {ATTEMPT_COLUMN} = ANY($1)"
            counted = connection.execute(count, (attempts,)).fetchone()
            if counted != (rows,):  # a crash of the database empties unlogged tables
                raise RmqdError(
                    f"the database has {counted and counted[0]} rows for {self._where}; expected the {rows} copied ones"
                )
            try:
                moved = self._move_rows(connection, attempts)
            except psycopg.errors.CardinalityViolation as error:
                keys = ", ".join(self._sink.keys)
                raise RmqdError(
                    f"{self._where}: batch {batch.number} has several rows with the same key ({keys}); set "
                    "sink.order_by to the columns that determine the last one"
                ) from error
            if moved:
                self._warn_of_older_rows(batch, moved)
            if self._leaves_out:
                self._keep_refused(connection, batch, attempts)
        connection.execute(
            f"UPDATE {statements.batches_table} SET query = $1, batch = $2, plan = $3, rows = $4, written_at = now() "
            "WHERE writer = $5 AND target = $6",
            (batch.query_id, batch.number, batch.offset_log_id, rows, *self._name),
        )

    def _move_rows(self, connection: Connection[tuple[Any, ...]], attempts: list[str]) -> int:
        """Move the rows that the table accepts. Return the number of skipped keys, as `move_rows_sql` counts them.

        Raises RmqdError for the first row that the table refuses, unless `sink.bad_rows` is `leave_out`.
        """
        while True:
            try:
                with connection.transaction():
                    return self._try_rows(connection, attempts, None)
            except psycopg.Error as error:
                if not is_row_refused(error, self._statements.columns):
                    raise
                staged = f"SELECT {ROW_COLUMN} {self._statements.staged_rows_clause(self._epoch)} ORDER BY {ROW_COLUMN}"
                rows = [row for (row,) in connection.execute(staged, (attempts,))]
                if not self._refuse_rows(connection, attempts, rows):
                    raise

    def _try_rows(self, connection: Connection[tuple[Any, ...]], attempts: list[str], part: range | None) -> int:
        statement = self._statements.move_rows_sql(self._epoch, part)
        moved = connection.execute(statement, (attempts,)).fetchone()
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # COMMIT would check them without naming the row
        return int(moved[0]) if moved is not None else 0

    def _refuse_rows(self, connection: Connection[tuple[Any, ...]], attempts: list[str], rows: list[int]) -> int:
        """Find refused rows by bisection, and mark them as refused. Return their number. Raises like `_move_rows`."""
        if not rows:
            return 0
        try:
            with connection.transaction(force_rollback=True):
                self._try_rows(connection, attempts, range(rows[0], rows[-1] + 1))
            return 0
        except psycopg.Error as error:
            if not is_row_refused(error, self._statements.columns):
                raise
            if len(rows) > 1:
                middle = len(rows) // 2
                found = self._refuse_rows(connection, attempts, rows[:middle])
                return found + self._refuse_rows(connection, attempts, rows[middle:])
            refuse = (
                f"UPDATE {self._statements.staging_table(self._epoch)} s SET {REASON_COLUMN} = $1, "
                f"{CONTENT_COLUMN} = (to_jsonb(s) - ARRAY{list(STAGING_COLUMNS)})::text "
                f"WHERE {ATTEMPT_COLUMN} = ANY($2) AND {ROW_COLUMN} = $3 RETURNING {', '.join(MESSAGE_COLUMNS)}"
            )
            place = connection.execute(refuse, (db_error(error), attempts, rows[0])).fetchone()
            if not self._leaves_out and place is not None:
                raise RmqdError(
                    f"sink {self._where}: {db_error(error)}; the message is {source_place_text(place)}"
                ) from None
            return 1

    def _keep_refused(self, connection: Connection[tuple[Any, ...]], batch: MicroBatch, attempts: list[str]) -> None:
        kept = ", ".join((*MESSAGE_COLUMNS, REASON_COLUMN, CONTENT_COLUMN))
        keep = (
            f"INSERT INTO {self._statements.refused_table} SELECT $1, $2, $3, {kept}, now() "
            f"FROM {self._statements.staging_table(self._epoch)} "
            f"WHERE {ATTEMPT_COLUMN} = ANY($4) AND {REASON_COLUMN} IS NOT NULL "
            "RETURNING topic, broker, queue_id, queue_offset, reason"
        )
        refused = connection.execute(keep, (self._writer, batch.query_id, batch.number, attempts)).fetchall()
        if refused:
            log.warning(
                "spark.rows_refused",
                group=self._writer,
                table=self._where,
                batch=batch.number,
                rows=len(refused),
                kept_in=self._statements.refused_table,
                first=f"{refused[0][4]}; the message is {source_place_text(refused[0][:4])}",
            )

    @property
    def _leaves_out(self) -> bool:
        return self._sink.bad_rows == "leave_out"

    def _warn_of_older_rows(self, batch: MicroBatch, keys: int) -> None:
        log.warning(
            "spark.older_rows_left_out",
            group=self._writer,
            table=self._where,
            batch=batch.number,
            keys=keys,
            order_by=list(self._sink.order_by),
            meaning="the table has later rows, or later deletions, for this many keys: expected if messages are "
            "consumed again. Otherwise a trigger of the table skips rows by returning NULL; or the order has "
            "restarted, as after a topic was recreated, and changes are lost: see docs/pipelines.md",
        )

    @property
    def _noted(self) -> str:
        return f"the row of writer {self._writer} and target {self._statements.table} in {BATCHES_TABLE}"

    def _if_not_held(self, connection: Connection[tuple[Any, ...]], statement: str) -> None:
        """Execute a statement for cleanup. Skip the statement if another connection locks the table."""
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
                connection.execute(statement)
        except psycopg.errors.LockNotAvailable as error:
            log.info("spark.staging_held", group=self._writer, table=self._where, error=one_line(error))


def _without(schema: StructType, name: str) -> StructType:
    return StructType([field for field in schema.fields if field.name != name])


def _delete_problems(schema: StructType, sink: SinkConfig) -> Iterator[str]:
    if not (name := sink.delete_column):
        return
    if name not in schema.fieldNames():
        yield f"delete_column: unknown column {name}; expected one of {', '.join(schema.fieldNames())}"
    elif (kind := schema[name].dataType.simpleString()) != "boolean":
        yield f"delete_column: {name} is {kind} in the pipeline; expected boolean"
