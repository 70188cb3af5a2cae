"""The tasks of the sink `postgresql`: copy rows to the staging table."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark import TaskContext

from rmqd.errors import RmqdError
from rmqd.spark.pipelines.postgresql.connections import connected, refused_row, told
from rmqd.spark.sink.row_place import PLACE, PLACE_COLUMNS, place_text, places_of

TOLD: Final = "attempt string, rows bigint"
_ROWS_BITS: Final = 33  # like Spark's monotonically_increasing_id: numbers increase with the partition

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RowCopy:
    """A function for `mapInArrow`: copies a partition's rows, and returns the attempt and their number. Picklable."""

    conninfo: str
    """May contain a password. Spark does not display attributes of the function."""
    where: str
    statement: str
    json_columns: frozenset[str]
    refuse: str = ""
    """The statement that stages a refused row with its reason; empty if a refused row should fail the task."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy a partition. Raises RmqdError with the error of the database, so the task fails."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        attempt, rows = uuid.uuid4().hex, (context.partitionId() if context is not None else 0) << _ROWS_BITS
        start = rows
        with connected(self.conninfo, self.where) as connection:
            for batch in itertools.chain([first], batches):
                bad: dict[int, str] = {}
                numbers = range(rows, rows + batch.num_rows)
                places, values = places_of(batch), self._values(batch, bad)
                staged = list(zip(itertools.repeat(attempt), numbers, *places, *values, strict=False))
                for number, reason in bad.items():
                    self._refuse(connection, staged[number], batch, reason)
                self._copy(connection, [row for number, row in enumerate(staged) if number not in bad], batch)
                rows += batch.num_rows
        yield pa.RecordBatch.from_pydict({"attempt": [attempt], "rows": [rows - start]})

    def _copy(self, connection: Any, rows: Sequence[Row], batch: pa.RecordBatch) -> None:
        """Copy all rows with one statement. If a row is refused, copy halves until the row is found."""
        import psycopg

        if not rows:
            return
        try:
            with connection.cursor() as cursor, cursor.copy(self.statement) as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:
            if not refused_row(error):
                raise
            if len(rows) == 1:
                self._refuse(connection, rows[0], batch, told(error))
                return
            middle = len(rows) // 2
            self._copy(connection, rows[:middle], batch)
            self._copy(connection, rows[middle:], batch)

    def _refuse(self, connection: Any, row: Row, batch: pa.RecordBatch, reason: str) -> None:
        own = 2 + len(PLACE_COLUMNS)
        if not self.refuse:
            raise RmqdError(f"sink {self.where}: {reason}; the message is {place_text(row[2:own])}") from None
        names = [name for name in batch.schema.names if name != PLACE]
        content = json.dumps(dict(zip(names, row[own:], strict=True)), default=str)
        connection.execute(self.refuse, (*row[:own], reason, content))

    def _values(self, batch: pa.RecordBatch, bad: dict[int, str]) -> Iterator[list[Any]]:
        """Yield the values of each column. Add the rows with values that Python cannot represent to `bad`."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name == PLACE:
                continue
            values = _python_values(name, column, bad)
            if name in self.json_columns:
                to_json = _json_of(column.type)
                yield [None if value is None else to_json(value) for value in values]
            else:
                yield values


def _python_values(name: str, column: pa.Array, bad: dict[int, str]) -> list[Any]:
    kind = _in_utc(column.type)  # in the session's time zone, a time near year 1 or 9999 may be out of range
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


def _json_of(kind: pa.DataType) -> Callable[[Any], str]:
    plain = _plain_of(kind)
    return lambda value: json.dumps(plain(value), ensure_ascii=False, default=str)


def _plain_of(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that converts a value for JSON, because pyarrow returns a map as pairs."""
    if pa.types.is_map(kind):
        inner = _plain_of(kind.item_type)
        return lambda pairs: None if pairs is None else {str(key): inner(value) for key, value in pairs}
    if pa.types.is_list(kind):
        inner = _plain_of(kind.value_type)
        return lambda values: None if values is None else [inner(value) for value in values]
    if pa.types.is_struct(kind):
        fields = {field.name: _plain_of(field.type) for field in kind}
        return lambda value: None if value is None else {name: plain(value[name]) for name, plain in fields.items()}
    return lambda value: value
