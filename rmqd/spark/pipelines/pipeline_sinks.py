"""The sinks of pipelines, by format. Each writes one micro-batch at a time, on the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from rmqd.plugins.pipelines import load_batch_function
from rmqd.spark.pipelines.delta_table import DeltaTable
from rmqd.spark.pipelines.jdbc_table import JdbcTable
from rmqd.spark.pipelines.micro_batch import MicroBatch
from rmqd.spark.pipelines.parquet_sink import ParquetSink, folders_of
from rmqd.spark.pipelines.pipeline_source import SINK_NAME, bound_sink
from rmqd.spark.pipelines.postgresql.postgresql_sink import PostgresqlSink
from rmqd.spark.sink.writer import make_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from rmqd.spark.group_order import GroupOrder


class Sink(Protocol):
    """The sink of a group's pipeline."""

    def prepare(self, schema: StructType) -> None:
        """Check that the sink can take rows of this schema, before any row is read. Raises RmqdError."""

    def write(self, frame: DataFrame, batch: MicroBatch) -> object:
        """Write the rows of a batch. Called again for a batch that a crash interrupted."""


def make_sink(spark: SparkSession, order: GroupOrder) -> Sink:
    """Return the sink of a group. Raises RmqdError if it is unavailable."""
    sink = order.settings.sink
    assert sink is not None
    options = {name: _text(value) for name, value in sink.options.items()}
    if sink.format == "rocketmq":
        topic = {"topic": sink.topic} if sink.topic else {}
        return TopicSink(spark, order, {**topic, **options})
    if sink.format == "parquet":
        folder, staging = folders_of(spark, sink)
        return ParquetSink(folder, staging, order.name, tuple(sink.partition_by), options)
    if sink.format == "postgresql":
        return PostgresqlSink(sink, options, order.name, order.topics)
    if sink.format == "delta":
        return DeltaTable(spark, sink, options)
    if sink.format == "jdbc":
        return JdbcTable(spark, options, sink.batch_column)
    return FunctionSink(load_batch_function(order.name, order.settings))


def written_batches(spark: SparkSession, order: GroupOrder) -> Callable[[MicroBatch], bool] | None:
    """Return a function that checks whether the sink has stored a batch for good; None if the sink cannot know.

    Call it before reading the group's checkpoint: from then on, a previous driver cannot write a batch to a database.
    Raises RmqdError.
    """
    sink = make_sink(spark, order)
    if isinstance(sink, PostgresqlSink):
        sink.take_over()
    return sink.has if isinstance(sink, ParquetSink | PostgresqlSink) else None


class TopicSink:
    """Format `rocketmq`: at least once. Messages carry the query and batch, as described in docs/spark.md."""

    def __init__(self, spark: SparkSession, order: GroupOrder, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._order = order
        self._options = dict(options)

    def prepare(self, schema: StructType) -> None:
        """Raises ConfigError with the problems of options and columns."""
        checked = make_options(self._options, schema, overwrite=False, otherwise=self._order.access)
        sink = self._order.settings.sink
        leaves_out = sink is not None and sink.bad_rows == "leave_out"
        self._spark.dataSource.register(bound_sink(replace(checked, leaves_out=leaves_out)))

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Send each row of the micro-batch as a message."""
        frame.write.format(SINK_NAME).mode("append").save()


class FunctionSink:
    """Format `foreach_batch`: calls the group's own function with each batch."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def prepare(self, schema: StructType) -> None:
        """Accept every schema."""

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Call the function. An exception ends the query, and the batch is delivered again."""
        self._function(frame, batch.number)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
