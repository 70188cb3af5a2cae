"""The streaming query of a group with a pipeline: its data source, the pipeline function, and a sink by its format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, InputPartition
from pyspark.sql.types import StructType

from rmqd.errors import RmqdError, install_command
from rmqd.handler_api.destinations.upsert_sql import PLACE_COLUMN
from rmqd.plugins.entry_points import why
from rmqd.plugins.handler_catalogue import load_batch_function, load_pipeline
from rmqd.spark.handlers.group_source import GroupSourceSettings, GroupStreamReader, source_class, start_group_query
from rmqd.spark.handlers.range_outcome import BatchSizer
from rmqd.spark.pipelines.parquet_sink import ParquetSink, folders_of
from rmqd.spark.pipelines.pinned_schema import read_used_columns, store_used_columns, used_columns, with_pinned_schema
from rmqd.spark.pipelines.pipeline_counts import (
    LOST_DDL,
    BatchFailedError,
    MicroBatch,
    with_lost_messages_row,
    with_message_counts,
    without_lost_rows,
)
from rmqd.spark.pipelines.table_sinks import DeltaTable, JdbcTable
from rmqd.spark.session.hadoop_folder import HadoopFolder
from rmqd.spark.session.spark_access import option_text
from rmqd.spark.sink.sink_rows import SinkOptions
from rmqd.spark.sink.sink_writer import QUERY_ID_PROPERTY, RocketMQWriter, checked_sink_options
from rmqd.spark.source.arrow_columns import batch_schema
from rmqd.spark.source.range_fetch import read_partition
from rmqd.spark.source.source_columns import schema_ddl
from rmqd.spark.source.source_options import SourceOptions
from rmqd.spark.values.value_format import ValueFormat

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from rmqd.spark.session.group_spec import GroupSpec
    from rmqd.wire.message_queue import MessageQueue


FORMAT_NAME: Final = "rmqd_pipeline"
SINK_FORMAT_NAME: Final = "rmqd_pipeline_topic"
FIRST_BATCH_ROWS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSourceSettings(GroupSourceSettings):
    """The settings of a pipeline's source. Picklable."""

    value_format: ValueFormat | None = None
    """How to decode bodies into a column; set if a schema registry provides the schema."""

    def source_options(self) -> SourceOptions:
        """Return the options, with the schemas that the registry returned when the query was created."""
        options = GroupSourceSettings.source_options(self)  # super() fails in a dataclass with slots
        return options if self.value_format is None else replace(options, value_format=self.value_format)

    def batch_sizer(self) -> BatchSizer | None:
        """Return the batch sizes; None if each batch takes all messages, because the trigger paces the batches."""
        config = self.spec.spark
        if config.trigger and not config.max_offsets_per_trigger:
            return None
        return BatchSizer(
            FIRST_BATCH_ROWS, fixed_messages=config.max_offsets_per_trigger, target_seconds=self.target_batch_seconds
        )


def pipeline_source(spec: GroupSpec, starting: Mapping[MessageQueue, int] | None, pause_file: str) -> type[DataSource]:
    """Return the data source of one group, to be registered.

    Raises RegistryUnavailableError if the schema registry does not return the schema of the bodies.
    """
    asking = PipelineSourceSettings(spec=spec, start_offsets=starting, pause_file=pause_file)
    options = asking.source_options()
    value = (
        options.value_format.with_latest_schema(options.tolerance_seconds) if options.value_format is not None else None
    )
    plan = replace(asking, value_format=value)
    return source_class(
        FORMAT_NAME, f"{schema_ddl(options.columns, value)}, {LOST_DDL}", lambda: PipelineStreamReader(plan)
    )


class PipelineStreamReader(GroupStreamReader):
    """The reader of a pipeline: its tasks decode only the columns that the pipeline uses, and report lost messages."""

    def __init__(self, plan: PipelineSourceSettings) -> None:
        super().__init__(plan, plan.batch_sizer())
        self._options = replace(self._options, used_columns=read_used_columns(plan.pause_file))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return with_lost_messages_row(read_partition(partition, self._options), batch_schema(self._options))


def sink_class(options: SinkOptions) -> type[DataSource]:
    """Return the sink of one group, to be registered. It takes no options: Spark would display them with secrets."""

    class PipelineSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return SINK_FORMAT_NAME

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return RocketMQWriter(options)

    return PipelineSink


def make_sink(spark: SparkSession, spec: GroupSpec) -> Any:
    """Return the sink of a group. Raises RmqdError if it is unavailable.

    Its `prepare` checks that it can take rows of a schema, before any row is read. Its `write` writes the rows of a
    micro-batch, and is called again for a batch that a crash interrupted.
    """
    sink = spec.settings.sink
    assert sink is not None
    options = {name: option_text(value) for name, value in sink.options.items()}
    if sink.format == "rocketmq":
        topic = {"topic": sink.topic} if sink.topic else {}
        return TopicSink(spark, spec, {**topic, **options})
    if sink.format == "parquet":
        folder, staging = folders_of(spark, sink)
        return ParquetSink(folder, staging, spec.name, tuple(sink.partition_by), options)
    if sink.format == "postgresql":
        try:
            from rmqd.spark.pipelines.postgresql.postgresql_sink import PostgresqlSink
        except ImportError as error:
            run = f"run {install_command('postgresql')}"
            raise RmqdError(f"sink.format: postgresql needs psycopg, but {error}; {run}") from error
        return PostgresqlSink(sink, options, spec.name, spec.topics)
    if sink.format == "delta":
        return DeltaTable(spark, sink, options)
    if sink.format == "jdbc":
        return JdbcTable(spark, options, sink.batch_column)
    return FunctionSink(load_batch_function(spec.name, spec.settings))


def written_batch_check(spark: SparkSession, spec: GroupSpec) -> Callable[[MicroBatch], bool] | None:
    """Return a function that checks whether the sink has stored a batch for good; None if the sink cannot know.

    Call it before reading the group's checkpoint: from then on, a previous driver cannot write a batch to a database.
    Raises RmqdError.
    """
    sink = make_sink(spark, spec)
    if refuse_previous_drivers := getattr(sink, "refuse_previous_drivers", None):
        refuse_previous_drivers()
    return getattr(sink, "has_batch", None)


class TopicSink:
    """Format `rocketmq`: at least once. Messages carry the query and batch, as described in docs/spark.md."""

    def __init__(self, spark: SparkSession, spec: GroupSpec, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._spec = spec
        self._options = dict(options)

    def prepare(self, schema: StructType) -> None:
        """Check options and columns. Raises ConfigError with all problems."""
        checked = checked_sink_options(self._options, schema, overwrite=False, default_access=self._spec.access)
        sink = self._spec.settings.sink
        leaves_out = sink is not None and sink.bad_rows == "leave_out"
        self._spark.dataSource.register(sink_class(replace(checked, skips_bad_rows=leaves_out)))

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        frame.write.format(SINK_FORMAT_NAME).mode("append").save()


class FunctionSink:
    """Format `foreach_batch`: calls the group's own function with each batch."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def prepare(self, schema: StructType) -> None:
        """Accept every schema."""

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Call the function. An exception ends the query, and the batch is delivered again."""
        self._function(frame, batch.number)


def pipeline_query(
    spark: SparkSession,
    spec: GroupSpec,
    *,
    checkpoint: str,
    starting: Mapping[MessageQueue, int] | None,
    pause_file: str,
    shared_folder: str,
) -> StreamingQuery:
    """Start the streaming query of a group's pipeline. The parameters are the same as in `handler_query`.

    `shared_folder` is the folder or URL of files that all checkpoints of the group share. Raises RmqdError before
    anything is read if the pipeline or its sink is unavailable.
    """
    plan = GroupSourceSettings(spec=spec, start_offsets=starting, pause_file=pause_file)
    spec = with_pinned_schema(spec, plan.source_options(), starting, HadoopFolder(spark, shared_folder))
    settings = spec.settings
    assert settings.pipeline is not None
    assert settings.sink is not None
    namespace = spec.client_options.namespace
    spark.dataSource.register(pipeline_source(spec, starting, pause_file))
    read = without_lost_rows(with_message_counts(spark.readStream.format(FORMAT_NAME).load(), spec.topics))
    if "decode_error" in read.columns:
        read = read.where("decode_error IS NULL").drop("decode_error")
    if namespace:
        # as in the configuration, rows have topics without namespace
        prefix = f"^((?:%RETRY%|%DLQ%)?){re.escape(namespace)}%"
        read = read.withColumn("topic", f.regexp_replace("topic", prefix, "$1"))
    frame = _applied(load_pipeline(spec.name, settings), settings.pipeline.plugin, read, spark)
    store_used_columns(pause_file, used_columns(frame, FORMAT_NAME))
    sink = make_sink(spark, spec)
    keeps_place = settings.sink.format in ("postgresql", "rocketmq")
    sink.prepare((frame if keeps_place else frame.drop(PLACE_COLUMN)).schema)
    plans = HadoopFolder(spark, checkpoint)

    def write(batch_frame: DataFrame, batch_id: int) -> None:
        query = batch_frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY) or ""
        batch = MicroBatch(query, batch_id, plans.read(f"offsets/{batch_id}"))
        try:
            sink.write(batch_frame if keeps_place else batch_frame.drop(PLACE_COLUMN), batch)
        except Exception as error:
            former = plans.read(f"offsets/{batch_id - 1}") if batch_id else b""
            raise BatchFailedError(batch.messages_since(former)) from error

    writer = frame.writeStream.queryName(spec.name).outputMode(settings.sink.output_mode).foreachBatch(write)
    return start_group_query(writer, spec, checkpoint)


def _applied(pipeline: Callable[[Any, Any], Any], name: str, frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return the result of the pipeline. Raises RmqdError if it is not a streaming DataFrame."""
    try:
        made = pipeline(frame, spark)
    except Exception as error:
        raise RmqdError(f"the pipeline {name} failed: {why(error)}") from error
    if not isinstance(made, DataFrame):
        raise RmqdError(f"the pipeline {name} returned a {type(made).__name__}; expected a DataFrame")
    if not made.isStreaming:
        raise RmqdError(
            f"the pipeline {name} returned rows that do not stream; expected a DataFrame derived from its argument"
        )
    return made
