"""The meaning of values in order columns (`sink.order_by`), and the function that copies rows to the staging table.

Order values with different meanings, such as a time and an offset, cannot be compared. A pipeline describes an order
column in the column's metadata `rmqd.order`, in which `{topics}` stands for the group's topics. The description is
recorded in the table `rmqd_order_kinds`, with the topics of all groups that write to the target table. The transaction
of a batch holds a shared lock on the record, so the record changes only between batches.

Offsets of two topics are not comparable. This is harmless if no key is in both topics, but the record does not contain
the keys. So a topic that is added is assumed to have other keys than the previous topics. A topic that replaces
previous topics is assumed to have the same keys.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa  # type: ignore[import-untyped]
from psycopg import Connection
from pyspark import TaskContext
from pyspark.sql.types import StructType

from rmqd.errors import ConfigError, RmqdError
from rmqd.handler_api.destinations.exact_json import exact_json
from rmqd.handler_api.destinations.upsert_sql import ORDER_KIND, PLACE_COLUMN, PLACE_COLUMNS, quote_identifier
from rmqd.spark.pipelines.postgresql.table_shape import create_if_missing, db_error, is_row_refused, open_connection
from rmqd.spark.pipelines.postgresql.upsert_statements import UpsertStatements
from rmqd.spark.sink.sink_rows import source_place_text, source_places

_TOPICS: Final = "{topics}"
_NAME: Final = "rmqd_order_kinds"


@dataclass(frozen=True, slots=True)
class OrderColumn:
    """The meaning of the values in an order column, as the pipeline of one group describes it."""

    description: str
    """The description from the metadata. It contains `{topics}` if the values are offsets in topics."""
    topics: frozenset[str] = frozenset()
    """The group's topics."""

    @property
    def full_description(self) -> str:
        """The description with the group's topics, recorded if no other group writes to the table."""
        return self._of(self.topics)

    def matches(self, noted: str) -> bool:
        """Return whether the recorded description `noted` equals this description, possibly with more topics."""
        there = self._topics_in(noted)
        return noted == self.full_description or (there is not None and self.topics <= there)

    def description_to_record(self, noted: str) -> str | None:
        """Return the description to record instead of `noted`; None if the order values cannot be compared."""
        if self.matches(noted):
            return noted
        there = self._topics_in(noted)
        return self.full_description if there is not None and there <= self.topics else None

    def description_with_all_topics(self, noted: str) -> str | None:
        """Return the description with the topics of this group and of `noted`; None unless only the topics differ."""
        there = self._topics_in(noted)
        return None if there is None else self._of(there | self.topics)

    def _of(self, topics: Iterable[str]) -> str:
        return self.description.replace(_TOPICS, ", ".join(sorted(topics)))

    def _topics_in(self, noted: str) -> frozenset[str] | None:
        first, *others = map(re.escape, self.description.split(_TOPICS))
        found = re.fullmatch(f"{first}(.+)" + r"\1".join(others), noted) if others else None
        return None if found is None else frozenset(found[1].split(", "))


def order_columns_of(rows: StructType, order_by: Sequence[str], topics: Sequence[str]) -> dict[str, OrderColumn]:
    """Return the meaning of each order column by name. Columns that the pipeline does not describe are omitted."""
    told = {field.name: field.metadata or {} for field in rows.fields}
    return {
        name: OrderColumn(str(told[name][ORDER_KIND]), frozenset(topics))
        for name in order_by
        if told.get(name, {}).get(ORDER_KIND)
    }


@dataclass(frozen=True, slots=True)
class OrderColumns:
    """The meaning of each `sink.order_by` column of a group, and its record in the database."""

    statements: UpsertStatements
    order_columns: Mapping[str, OrderColumn]
    """The meaning of each order column that the pipeline describes, by column name."""

    @property
    def record_table(self) -> str:
        return self.statements.qualified(_NAME)

    def record_meanings(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Record the meanings of the group's order columns. The caller must have begun a transaction.

        Raises ConfigError if the target table has values with another meaning.
        """
        if not self.order_columns:
            return
        create_if_missing(
            connection,
            self.record_table,
            f"CREATE TABLE {self.record_table} (target text NOT NULL, column_name text NOT NULL, kind text NOT NULL, "
            "PRIMARY KEY (target, column_name))",
        )
        for name, kind in self.order_columns.items():
            place = (self.statements.table, name)
            connection.execute(
                f"INSERT INTO {self.record_table} VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
                (*place, kind.full_description),
            )
            there = self._noted(connection, name, "UPDATE") or kind.full_description
            noted = kind.description_to_record(there)
            if noted is None and (filled := list(self._filled(connection, name))):
                raise ConfigError([self._problem(name, kind, there, filled)])
            if noted != there:
                connection.execute(
                    f"UPDATE {self.record_table} SET kind = $1 WHERE target = $2 AND column_name = $3",
                    (noted or kind.full_description, *place),
                )

    def lock_record(self, connection: Connection[tuple[Any, ...]]) -> None:
        """Lock the recorded meanings until the transaction ends. Raises RmqdError if another group has changed them."""
        for name, kind in self.order_columns.items():
            there = self._noted(connection, name, "SHARE")
            if there is not None and not kind.matches(there):
                raise RmqdError(
                    f"{self.statements.table}: another group now orders its rows by {name} as {there!r}, and this "
                    f"group as {kind.full_description!r}; run only one of the groups, or use the same order in both"
                    f"{self._joining(name, kind, there)}"
                )

    def _noted(self, connection: Connection[tuple[Any, ...]], name: str, lock: str) -> str | None:
        found = connection.execute(
            f"SELECT kind FROM {self.record_table} WHERE target = $1 AND column_name = $2 FOR {lock}",
            (self.statements.table, name),
        ).fetchone()
        return None if found is None else str(found[0])

    def _filled(self, connection: Connection[tuple[Any, ...]], name: str) -> Iterator[str]:
        """Yield the tables that have a value in the order column. Nulls do not count: they are before all values.

        The table of deletions is checked even for a group without `delete_column`, because another group may have
        written to it. The table of deletions lacks the column if the other group does not use this order column.
        """
        deletions = self.statements.deletions_table
        for table in (self.statements.target_table, deletions):
            if table == deletions and not _has_column(connection, table, name):
                continue
            found = connection.execute(
                f"SELECT EXISTS (SELECT FROM {table} WHERE {quote_identifier(name)} IS NOT NULL)"
            )
            if (row := found.fetchone()) is not None and row[0]:
                yield table

    def _clearing_statement(self, table: str, name: str) -> str:
        """Return the statement that removes the values of the order column, or all rows of the table of deletions."""
        is_target = table == self.statements.target_table
        return f"UPDATE {table} SET {quote_identifier(name)} = NULL" if is_target else f"TRUNCATE {table}"

    def _joining(self, name: str, kind: OrderColumn, there: str) -> str:
        """Return a text that proposes to record all topics; empty if more than the topics differs."""
        if (joined := kind.description_with_all_topics(there)) is None:
            return ""
        where = {"target": self.statements.table, "column_name": name, "kind": there}
        found = " AND ".join(f"{column} = {_literal(value)}" for column, value in where.items())
        return (
            "; or, if each key is in one topic only, record all topics: "
            f"UPDATE {self.record_table} SET kind = {_literal(joined)} WHERE {found}"
        )

    def _problem(self, name: str, kind: OrderColumn, there: str, filled: Sequence[str]) -> str:
        return (
            f"sink {self.statements.table}: its rows are ordered by {name} as {there!r}, but this group's rows as "
            f"{kind.full_description!r}, so an older change could replace a later one; "
            f"expected {there!r}{self._joining(name, kind, there)}; or, to let all new changes count as later, wait "
            "until no group that writes to the table has lag, stop these groups, and run "
            f"{'; '.join(self._clearing_statement(table, name) for table in filled)}; or, to start over, stop the "
            f"groups, run TRUNCATE {', '.join(filled)}, and reset this group to its first messages"
        )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _has_column(connection: Connection[tuple[Any, ...]], table: str, name: str) -> bool:
    found = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = $2 AND attnum > 0 "
        "AND NOT attisdropped)",
        (table, name),
    ).fetchone()
    return found is not None and bool(found[0])


COPY_RESULT_DDL: Final = "attempt string, rows bigint"
_ROWS_BITS: Final = 33  # bits of the position in the partition; the partition's number has the higher bits, as in Spark

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RowCopier:
    """A function for `mapInArrow` that copies a partition's rows, and yields a row of COPY_RESULT_DDL. Picklable."""

    conninfo: str
    """libpq's connection string. It may contain a password, because Spark does not display the attribute."""
    error_prefix: str
    copy_statement: str
    json_columns: frozenset[str]
    key_columns: frozenset[str] = frozenset()
    """The columns that must not be null, because a unique index usually treats each null as a different value."""
    refuse_statement: str = ""
    """The statement that stages a refused row with a reason. If it is empty, a refused row fails the task."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy a partition's rows. Raises RmqdError with the database's error, which fails the task."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        attempt, rows = uuid.uuid4().hex, (context.partitionId() if context is not None else 0) << _ROWS_BITS
        start = rows
        with open_connection(self.conninfo, self.error_prefix) as connection:
            for batch in itertools.chain([first], batches):
                bad: dict[int, str] = {}
                numbers = range(rows, rows + batch.num_rows)
                places, values = source_places(batch), self._values(batch, bad)
                staged = list(zip(itertools.repeat(attempt), numbers, *places, *values, strict=False))
                for number, reason in bad.items():
                    self._refuse(connection, staged[number], batch, reason)
                self._copy(connection, [row for number, row in enumerate(staged) if number not in bad], batch)
                rows += batch.num_rows
        yield pa.RecordBatch.from_pydict({"attempt": [attempt], "rows": [rows - start]})

    def _copy(self, connection: Any, rows: Sequence[Row], batch: pa.RecordBatch) -> None:
        """Copy rows with one statement. If the database refuses a row, find the row by bisection, and refuse it."""
        if not rows:
            return
        try:
            with connection.cursor() as cursor, cursor.copy(self.copy_statement) as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:
            if not is_row_refused(error):
                raise
            if len(rows) == 1:
                self._refuse(connection, rows[0], batch, db_error(error))
                return
            middle = len(rows) // 2
            self._copy(connection, rows[:middle], batch)
            self._copy(connection, rows[middle:], batch)

    def _refuse(self, connection: Any, row: Row, batch: pa.RecordBatch, reason: str) -> None:
        own = 2 + len(PLACE_COLUMNS)
        if not self.refuse_statement:
            raise RmqdError(
                f"sink {self.error_prefix}: {reason}; the message is {source_place_text(row[2:own])}"
            ) from None
        names = [name for name in batch.schema.names if name != PLACE_COLUMN]
        content = json.dumps(dict(zip(names, row[own:], strict=True)), default=str)
        connection.execute(self.refuse_statement, (*row[:own], reason, content))

    def _values(self, batch: pa.RecordBatch, bad: dict[int, str]) -> Iterator[list[Any]]:
        """Yield each column's values. Add rows with null keys, or values that Python cannot represent, to `bad`."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name == PLACE_COLUMN:
                continue
            values = _python_values(name, column, bad)
            if name in self.key_columns and column.null_count:
                told = f'null value in column "{name}", which is one of keys; expected a value'
                bad |= {number: told for number, value in enumerate(values) if value is None and number not in bad}
            if name in self.json_columns:
                plain = _plain_of(column.type)
                yield [None if value is None else exact_json(plain(value)) for value in values]
            else:
                yield values


def _python_values(name: str, column: pa.Array, bad: dict[int, str]) -> list[Any]:
    kind = _in_utc(column.type)  # in other time zones, a time near year 1 or 9999 may be out of range
    column = column if kind == column.type else column.cast(kind)
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        values = []
        for number, value in enumerate(column):
            try:
                values.append(value.as_py())
            except (ValueError, OverflowError):
                values.append(None)
                bad[number] = f"column {name}: the value is not a date of the years 1 to 9999"
    return values


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    return kind


def _plain_of(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that converts a value from pyarrow for JSON: maps to dicts, bytes and times to text."""
    if pa.types.is_map(kind):
        inner = _plain_of(kind.item_type)
        return lambda pairs: None if pairs is None else {str(key): inner(value) for key, value in pairs}
    if pa.types.is_list(kind):
        inner = _plain_of(kind.value_type)
        return lambda values: None if values is None else [inner(value) for value in values]
    if pa.types.is_struct(kind):
        fields = {field.name: _plain_of(field.type) for field in kind}
        return lambda value: None if value is None else {name: plain(value[name]) for name, plain in fields.items()}
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: None if value is None else base64.b64encode(value).decode()
    if pa.types.is_temporal(kind):
        return lambda value: None if value is None else str(value)
    return lambda value: value
