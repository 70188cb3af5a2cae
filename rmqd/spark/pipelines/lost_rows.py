"""Tells a pipeline's driver how many messages its tasks have lost: by a row of its own, which no pipeline gets.

A task of a source returns rows and nothing else. So the rows have one more column, which is null for messages.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LOST: Final = "rmqd_lost"
LOST_DDL: Final = f"{LOST} bigint"


def with_lost_row(read: Generator[pa.RecordBatch, None, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of a partition with the column, and a last row for what the read returns as lost."""
    reading = _Reading(read)
    for batch in reading:
        yield batch.append_column(LOST, pa.nulls(len(batch), pa.int64()))
    if reading.lost:
        message = [pa.nulls(1, column.type) for column in schema]
        yield pa.RecordBatch.from_arrays([*message, pa.array([reading.lost])], [*schema.names, LOST])


def messages_of(frame: DataFrame) -> DataFrame:
    """The frame without such rows, and without their column."""
    return frame.where(f"{LOST} IS NULL").drop(LOST)


class _Reading:
    """Keeps what a generator returns."""

    def __init__(self, read: Generator[pa.RecordBatch, None, int]) -> None:
        self._read = read
        self.lost = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.lost = yield from self._read
