"""The sink `postgresql` on the driver: one transaction for each batch, which holds the batch's number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.pipelines.micro_batch import MicroBatch
from rmqd.spark.pipelines.postgresql.connections import connected, conninfo_of, exists, one_line, refused_row, told
from rmqd.spark.pipelines.postgresql.deletions import Deletions
from rmqd.spark.pipelines.postgresql.order_kinds import OrderKinds, kinds_of
from rmqd.spark.pipelines.postgresql.statements import BATCHES, ONE_AT_A_TIME, Statements
from rmqd.spark.pipelines.postgresql.table_shape import read_shape
from rmqd.spark.sink.row_place import PLACE, place_text

if TYPE_CHECKING:
    from psycopg import Connection
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from rmqd.config.model.spark import SinkConfig

log = structlog.get_logger(__name__)

LOCK_SECONDS: Final = 5  # for what may be left as well: a lost task's connection can hold its staging table for minutes


class PostgresqlSink:
    """One group's way to a table. For one query at a time, on the driver.

    Methods raise RmqdError with what the database says.
    """

    def __init__(self, sink: SinkConfig, options: Mapping[str, str], writer: str, topics: Sequence[str] = ()) -> None:
        """`writer` tells those apart that write to one table: a group's name. `options` are libpq's.

        `topics` are those that the rows are of.
        """
        self._sink = sink
        self._conninfo = conninfo_of(sink.url, options, writer)
        self._writer = writer
        self._topics = topics
        self._where = sink.table
        self._statements = Statements(writer, "", sink.table, ())
        self._order_kinds = OrderKinds(self._statements, {})
        self._json_columns: frozenset[str] = frozenset()
        self._epoch = 0

    def prepare(self, schema: StructType) -> None:
        """See that rows of this schema can go to the table, and take over from former drivers: what they still have
        under way is refused from here on.

        Raises ConfigError with all that is wrong.
        """
        sink = self._sink
        schema = _without(schema, PLACE)
        stored = _without(schema, sink.delete_column)
        with self._connected() as connection:
            shape = read_shape(connection, sink.table, stored)
            problems = [*_delete_problems(schema, sink), *shape.problems(stored, sink.keys, sink.order_by)]
            if problems:
                raise ConfigError([f"sink {sink.table}: {problem}" for problem in problems])
            self._json_columns = shape.json_columns(stored)
            self._statements = Statements(
                self._writer,
                shape.schema,
                shape.table,
                tuple(schema.fieldNames()),
                tuple(sink.keys),
                tuple(sink.order_by),
                sink.delete_column,
            )
            self._order_kinds = OrderKinds(self._statements, kinds_of(schema, sink.order_by, self._topics))
            with connection.transaction():
                self._epoch = self._next_epoch(connection)
                if sink.delete_column:
                    self._have_deletions_table(connection)
                if self._leaves_out and not exists(connection, self._statements.refused):
                    connection.execute(self._statements.make_refused())
                self._order_kinds.note(connection)
                connection.execute(self._statements.make_staging(self._epoch))
            self._forget_former_stagings(connection)

    def take_over(self) -> None:
        """Have batches of former drivers refused from here on."""
        with self._connected() as connection:
            self._statements = self._of_batches(connection)
            with connection.transaction():
                self._next_epoch(connection)

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Have a batch's rows in the table, once however often it is repeated.

        Raises RmqdError where another driver has taken over, or where the table has a later batch of the query.
        """
        from rmqd.spark.pipelines.postgresql.row_copy import TOLD, RowCopy

        statements = self._statements
        with self._connected() as connection:
            if self._is_written(connection, batch, lock=False):
                # yet what a stateful query keeps is only kept when its plan runs
                frame.write.format("noop").mode("overwrite").save()
                return
        refuse = statements.refuse(self._epoch) if self._leaves_out else ""
        copy = RowCopy(self._conninfo, self._where, statements.copy(self._epoch), self._json_columns, refuse)
        copied = frame.mapInArrow(copy, TOLD).collect()
        with self._connected() as connection:
            with connection.transaction():
                if statements.delete_column:  # first of all, so that what this transaction sees is from behind it
                    connection.execute(Deletions(statements).lock())
                if not self._is_written(connection, batch, lock=True):
                    self._order_kinds.see(connection)
                    self._move(connection, batch, [row.attempt for row in copied], sum(row.rows for row in copied))
            if copied:
                self._if_not_held(connection, statements.empty_staging(self._epoch))

    def has(self, batch: MicroBatch) -> bool:
        """Whether the table has a batch for good."""
        with self._connected() as connection:
            last = connection.execute(self._statements.last_batch(lock=False), self._name).fetchone()
            return last is not None and last[1:] == (batch.query, batch.number, batch.plan_id)

    @property
    def _name(self) -> tuple[str, str]:
        return self._writer, self._statements.table

    def _connected(self) -> Any:
        return connected(self._conninfo, self._where)

    def _of_batches(self, connection: Connection[tuple[Any, ...]]) -> Statements:
        """The statements about batches alone, for which no rows are known yet."""
        from pyspark.sql.types import StructType

        shape = read_shape(connection, self._sink.table, StructType())
        return Statements(self._writer, shape.schema, shape.table, ())

    def _next_epoch(self, connection: Connection[tuple[Any, ...]]) -> int:
        """Take the next epoch; a former driver's transaction is awaited, if it has one under way."""
        self._have_batches_table(connection)
        taken = connection.execute(self._statements.take_epoch(), self._name).fetchone()
        assert taken is not None
        return int(taken[0])

    def _have_batches_table(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Make it unless it is there: making asks for a right that a group need not have later."""
        if exists(connection, self._statements.batches):
            return
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (ONE_AT_A_TIME,))
        connection.execute(self._statements.make_batches())

    def _have_deletions_table(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Make it unless it is there. Raises ConfigError where it is there, and keeps something else."""
        deletions = Deletions(self._statements)
        if not exists(connection, deletions.table):
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (ONE_AT_A_TIME,))
        if not exists(connection, deletions.table):
            for statement in deletions.make():
                connection.execute(statement)
            return
        found = connection.execute(f"SELECT * FROM {deletions.table} LIMIT 0").description or ()
        if missing := set(deletions.columns) - {column.name for column in found}:
            raise ConfigError(
                [
                    f"sink {self._where}: {deletions.table}, which keeps what was deleted, has no column "
                    f"{', '.join(sorted(missing))}: keys or order_by were others when it was made; accepted: these, or "
                    f"what DROP TABLE {deletions.table} does if no change that is older than a deletion can come"
                ]
            )

    def _forget_former_stagings(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Drop what former drivers have left; their tasks fail by that, if they still copy."""
        prefix, schema = self._statements.staging_prefix, self._statements.schema
        tables = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)", (schema, prefix)
        ).fetchall()
        for (name,) in tables:
            if int(name.removeprefix(prefix)) < self._epoch:
                self._if_not_held(connection, f"DROP TABLE IF EXISTS {self._statements.beside(name)}")

    def _is_written(self, connection: Connection[tuple[Any, ...]], batch: MicroBatch, *, lock: bool) -> bool:
        """Whether the table has the batch. With `lock` no other driver can change that until the transaction ends.

        Raises RmqdError where this driver, or this checkpoint, is not the last one that wrote.
        """
        last = connection.execute(self._statements.last_batch(lock=lock), self._name).fetchone()
        if last is None:
            raise RmqdError(f"{self._noted} is gone: somebody has deleted it; the group's next start makes it anew")
        epoch, query, number, plan = last
        if epoch != self._epoch:
            raise RmqdError(
                f"another driver of {self._writer} has begun to write to {self._where}, and this one has to end: "
                f"its epoch is {self._epoch}, and {epoch} is the last one"
            )
        if query != batch.query or number < batch.number:
            return False
        if (number, plan) == (batch.number, batch.plan_id):
            return True
        raise RmqdError(
            f"{self._where} has batch {number} of this query already, and now comes batch {batch.number} with other "
            f"messages: was the checkpoint taken back? If it shall be written again, delete {self._noted}"
        )

    def _move(self, connection: Connection[tuple[Any, ...]], batch: MicroBatch, attempts: list[str], rows: int) -> None:
        import psycopg

        statements = self._statements
        if attempts:
            counted = connection.execute(statements.count_staged(self._epoch), (attempts,)).fetchone()
            if counted is None or counted[0] != rows:  # a crash of the database empties tables that are not logged
                raise RmqdError(f"of {rows} rows that were copied for {self._where}, the database has {counted}")
            try:
                moved = self._move_rows(connection, attempts)
            except psycopg.errors.CardinalityViolation as error:
                keys = ", ".join(self._sink.keys)
                raise RmqdError(
                    f"{self._where}: batch {batch.number} has several rows of one key ({keys}), and which of them "
                    "counts is not said; accepted: sink.order_by, columns by which the last one is known"
                ) from error
            if moved:
                self._tell_older(batch, moved)
            if self._leaves_out:
                self._keep_refused(connection, batch, attempts)
        connection.execute(statements.note_batch(), (batch.query, batch.number, batch.plan_id, rows, *self._name))

    def _move_rows(self, connection: Connection[tuple[Any, ...]], attempts: list[str]) -> int:
        """Move the rows that the table takes. Returns how many keys have something later there.

        Raises RmqdError for the first row that the table refuses, unless such rows are left out.
        """
        import psycopg

        while True:
            try:
                with connection.transaction():
                    return self._try_rows(connection, attempts, None)
            except psycopg.Error as error:
                if not refused_row(error, self._statements.columns):
                    raise
                rows = [row for (row,) in connection.execute(self._statements.staged_rows(self._epoch), (attempts,))]
                if not self._refuse_rows(connection, attempts, rows):
                    raise

    def _try_rows(self, connection: Connection[tuple[Any, ...]], attempts: list[str], part: range | None) -> int:
        statements = self._statements
        move = Deletions(statements).move if statements.delete_column else statements.move
        moved = connection.execute(move(self._epoch, part), (attempts,)).fetchone()
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # COMMIT would check them, and name no row
        return int(moved[0]) if moved is not None else 0

    def _refuse_rows(self, connection: Connection[tuple[Any, ...]], attempts: list[str], rows: list[int]) -> int:
        """Find the rows that the table refuses, by halves, and mark them as refused. Returns how many they are."""
        import psycopg

        if not rows:
            return 0
        try:
            with connection.transaction(force_rollback=True):
                self._try_rows(connection, attempts, range(rows[0], rows[-1] + 1))
            return 0
        except psycopg.Error as error:
            if not refused_row(error, self._statements.columns):
                raise
            if len(rows) > 1:
                middle = len(rows) // 2
                found = self._refuse_rows(connection, attempts, rows[:middle])
                return found + self._refuse_rows(connection, attempts, rows[middle:])
            refuse = self._statements.refuse_staged(self._epoch)
            place = connection.execute(refuse, (told(error), attempts, rows[0])).fetchone()
            if not self._leaves_out and place is not None:
                raise RmqdError(f"sink {self._where}: {told(error)}; it is {place_text(place)}") from None
            return 1

    def _keep_refused(self, connection: Connection[tuple[Any, ...]], batch: MicroBatch, attempts: list[str]) -> None:
        keep = self._statements.keep_refused(self._epoch)
        refused = connection.execute(keep, (self._writer, batch.query, batch.number, attempts)).fetchall()
        if refused:
            log.warning(
                "spark.rows_refused",
                group=self._writer,
                table=self._where,
                batch=batch.number,
                rows=len(refused),
                kept_in=self._statements.refused,
                first=f"{refused[0][4]}; it is {place_text(refused[0][:4])}",
            )

    @property
    def _leaves_out(self) -> bool:
        return self._sink.bad_rows == "leave_out"

    def _tell_older(self, batch: MicroBatch, keys: int) -> None:
        log.warning(
            "spark.older_rows_left_out",
            group=self._writer,
            table=self._where,
            batch=batch.number,
            keys=keys,
            order_by=list(self._sink.order_by),
            meaning="as many keys have something later in the table, or a later deletion: expected where messages are "
            "read again. If none are, a trigger of the table leaves rows out, by returning NULL; or the order begins "
            "anew, as of a topic that was made anew, and changes are lost: docs/pipelines.md says what to do",
        )

    @property
    def _noted(self) -> str:
        return f"the row of writer {self._writer} and target {self._statements.table} in {BATCHES}"

    def _if_not_held(self, connection: Connection[tuple[Any, ...]], statement: str) -> None:
        """Do what need not be done now: a table that somebody still holds is left."""
        import psycopg

        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
                connection.execute(statement)
        except psycopg.errors.LockNotAvailable as error:
            log.info("spark.staging_held", group=self._writer, table=self._where, error=one_line(error))


def _without(schema: StructType, name: str) -> StructType:
    from pyspark.sql.types import StructType

    return StructType([field for field in schema.fields if field.name != name])


def _delete_problems(schema: StructType, sink: SinkConfig) -> Iterator[str]:
    """What is wrong with the column that says which rows are deletions."""
    if not (name := sink.delete_column):
        return
    if name not in schema.fieldNames():
        yield f"delete_column: there is no column {name}; the pipeline's are {', '.join(schema.fieldNames())}"
    elif (kind := schema[name].dataType.simpleString()) != "boolean":
        yield f"delete_column: {name} is {kind} in the pipeline; accepted: boolean"
