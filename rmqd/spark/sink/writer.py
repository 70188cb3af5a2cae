"""The format `rocketmq` as a sink: `df.write.format("rocketmq")` and `df.writeStream`.

Delivery is at least once: a task returns its commit message only when all of its rows are stored. A task that Spark
retries sends all of its rows again, with the same RMQD_QUERY, RMQD_BATCH, RMQD_PART and RMQD_SEQ.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from rmqd.spark.process_log import log_to_stderr
from rmqd.spark.sink.outgoing import Origin, rows_of
from rmqd.spark.sink.sending import sender_to
from rmqd.spark.sink.sink_options import SinkOptions, parse_sink_options
from rmqd.spark.worker_garbage import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from rmqd.spark.access import Access

log = structlog.get_logger(__name__)

# local properties that Spark sets for the tasks of a streaming query
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Stored(WriterCommitMessage):
    """The number and size of messages that a task has stored."""

    messages: int
    size_bytes: int


def make_options(
    values: Mapping[str, str], schema: StructType, *, overwrite: bool, otherwise: Access | None = None
) -> SinkOptions:
    """Check options and columns like `parse_sink_options`. Raises ConfigError with a line for each problem."""
    columns = {column.name: column.dataType.simpleString() for column in schema.fields}
    return parse_sink_options(values, columns, overwrite=overwrite, otherwise=otherwise)


class RocketMQWriter(DataSourceArrowWriter):
    """Writes a DataFrame. Created and committed on the driver, pickled to executors for `write`."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Called on executors, for each partition."""
        return _write(iterator, self._options, self._id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log how many messages were stored. They cannot be removed from the topic."""
        _tell_stored(messages, "")


class RocketMQStreamWriter(DataSourceStreamArrowWriter):
    """The same for a streaming query. Spark creates a new one for each batch."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
        """Called on executors, for each partition of each batch."""
        return _write(iterator, self._options, "")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: all rows of the batch are already stored."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log how many messages were stored. The repeated batch sends them again."""
        _tell_stored(messages, str(batchId))


def _write(batches: Iterator[pa.RecordBatch], options: SinkOptions, query: str) -> Stored:
    context = TaskContext.get()
    origin = Origin(query, "", 0)
    if context is not None:
        stream = context.getLocalProperty(QUERY_ID) or query
        origin = Origin(stream, context.getLocalProperty(BATCH_ID) or "", context.partitionId())
    sender = sender_to(options.access)
    sender.look_again()
    total = total_bytes = first = 0
    for batch in batches:
        count, size_bytes = sender.send(rows_of(batch, options, origin, first), options)
        first += batch.num_rows
        total += count
        total_bytes += size_bytes
    freeze_imports()
    return Stored(total, total_bytes)


def _tell_stored(messages: list[WriterCommitMessage | None], batch: str) -> None:
    log_to_stderr()
    stored = sum(message.messages for message in messages if isinstance(message, Stored))
    log.warning("spark.write_failed", batch=batch, stored=stored, note="at least these messages are in the topic")
