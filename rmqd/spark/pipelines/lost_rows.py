"""Reports how many messages a pipeline's tasks lost, in an extra row that pipelines do not see.

A source's task can return only rows. So the rows have an additional column, which is null for messages.
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
    """Yield a partition's batches with the column, and a last row with the number of lost messages, if any."""
    reading = _Reading(read)
    for batch in reading:
        yield batch.append_column(LOST, pa.nulls(len(batch), pa.int64()))
    if reading.lost:
        message = [pa.nulls(1, column.type) for column in schema]
        yield pa.RecordBatch.from_arrays([*message, pa.array([reading.lost])], [*schema.names, LOST])


def messages_of(frame: DataFrame) -> DataFrame:
    """Remove the rows of lost messages, and their column."""
    return frame.where(f"{LOST} IS NULL").drop(LOST)


class _Reading:
    """Keeps the return value of a generator."""

    def __init__(self, read: Generator[pa.RecordBatch, None, int]) -> None:
        self._read = read
        self.lost = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        self.lost = yield from self._read
