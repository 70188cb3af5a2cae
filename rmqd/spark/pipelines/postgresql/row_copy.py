"""What a task does for the sink `postgresql`: it copies its rows to the staging table, in one transaction."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]

from rmqd.spark.pipelines.postgresql.connections import connected

TOLD: Final = "attempt string, rows bigint"


@dataclass(frozen=True, slots=True)
class RowCopy:
    """A function for `mapInArrow`: takes a partition's rows, and gives the attempt and how many they were. Pickles."""

    conninfo: str
    """With a password, perhaps: it is of the function, which Spark shows nowhere."""
    where: str
    statement: str
    json_columns: frozenset[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Copy a partition. Raises RmqdError with what the database says, by which the task fails."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        attempt, rows = uuid.uuid4().hex, 0
        with (
            connected(self.conninfo, self.where) as connection,
            connection.cursor() as cursor,
            cursor.copy(self.statement) as copy,
        ):
            while first is not None:
                for row in zip(*self._values(first), strict=True):
                    copy.write_row((attempt, *row))
                rows += first.num_rows
                first = next(batches, None)
        yield pa.RecordBatch.from_pydict({"attempt": [attempt], "rows": [rows]})

    def _values(self, batch: pa.RecordBatch) -> Iterator[list[Any]]:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            values = column.to_pylist()
            if name in self.json_columns:
                to_json = _json_of(column.type)
                yield [None if value is None else to_json(value) for value in values]
            else:
                yield values


def _json_of(kind: pa.DataType) -> Callable[[Any], str]:
    plain = _plain_of(kind)
    return lambda value: json.dumps(plain(value), ensure_ascii=False, default=str)


def _plain_of(kind: pa.DataType) -> Callable[[Any], Any]:
    """What makes a value one that JSON has: pyarrow gives a map as pairs."""
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
