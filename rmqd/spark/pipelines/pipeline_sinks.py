"""Where a pipeline's rows go, by the format of its sink. Each takes a micro-batch at a time, on the driver."""

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
    """The sink of one group's pipeline, as its configuration names it."""

    def prepare(self, schema: StructType) -> None:
        """See that rows of this schema can go there, before any is read. Raises RmqdError."""

    def write(self, frame: DataFrame, batch: MicroBatch) -> object:
        """Have a batch's rows there. Called again with a batch that was cut short by a crash."""


def make_sink(spark: SparkSession, order: GroupOrder) -> Sink:
    """The sink that a group asks for. Raises RmqdError where it cannot be had."""
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
    """What tells whether a group's sink has a batch for good; None for sinks that do not know. Raises RmqdError.

    To be asked for before the group's checkpoint is read: from then on a former driver writes no batch to a database.
    """
    sink = make_sink(spark, order)
    if isinstance(sink, PostgresqlSink):
        sink.take_over()
    return sink.has if isinstance(sink, ParquetSink | PostgresqlSink) else None


class TopicSink:
    """Format `rocketmq`: at least once. Messages say which query and batch they are of, as docs/spark.md says."""

    def __init__(self, spark: SparkSession, order: GroupOrder, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._order = order
        self._options = dict(options)

    def prepare(self, schema: StructType) -> None:
        """Raises ConfigError with what is wrong with options and columns."""
        checked = make_options(self._options, schema, overwrite=False, otherwise=self._order.access)
        sink = self._order.settings.sink
        leaves_out = sink is not None and sink.bad_rows == "leave_out"
        self._spark.dataSource.register(bound_sink(replace(checked, leaves_out=leaves_out)))

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Send each row of the micro-batch as a message."""
        frame.write.format(SINK_NAME).mode("append").save()


class FunctionSink:
    """Format `foreach_batch`: what the group's own function makes of a batch."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def prepare(self, schema: StructType) -> None:
        """The function may take any."""

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Call it; what it raises ends the query, and the batch comes again."""
        self._function(frame, batch.number)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
