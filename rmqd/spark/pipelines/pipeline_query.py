"""The streaming query of a group with a pipeline: the data source, the pipeline's function, and the sink."""

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
from rmqd.spark.handlers.group_source import (
    GroupSourceSettings,
    GroupStreamReader,
    data_source_class,
    start_group_query,
)
from rmqd.spark.handlers.range_outcome import BatchSizer
from rmqd.spark.pipelines.parquet_sink import ParquetSink, output_and_staging
from rmqd.spark.pipelines.pinned_schema import read_used_columns, store_used_columns, used_columns, with_pinned_schema
from rmqd.spark.pipelines.pipeline_counts import (
    LOST_DDL,
    BatchFailedError,
    MicroBatch,
    with_lost_messages_row,
    with_message_counts,
    without_lost_rows,
)
from rmqd.spark.pipelines.table_sinks import DeltaSink, JdbcSink
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
    """The settings of a pipeline's Spark source, sent to each process that runs the source. Picklable."""

    value_format: ValueFormat | None = None
    """How to decode message bodies, including schemas from a registry; None to use the format in the options."""

    def source_options(self) -> SourceOptions:
        """Return the source's options, with the schemas that the registry returned when the query was created."""
        options = GroupSourceSettings.source_options(self)  # super() fails in a dataclass with slots
        return options if self.value_format is None else replace(options, value_format=self.value_format)

    def batch_sizer(self) -> BatchSizer | None:
        """Return the batch sizer; None if each batch takes all messages, because only `spark.trigger` paces batches."""
        config = self.spec.spark
        if config.trigger and not config.max_offsets_per_trigger:
            return None
        return BatchSizer(
            FIRST_BATCH_ROWS, fixed_messages=config.max_offsets_per_trigger, target_seconds=self.target_batch_seconds
        )


def pipeline_source(spec: GroupSpec, starting: Mapping[MessageQueue, int] | None, pause_file: str) -> type[DataSource]:
    """Return the DataSource class of one group, for registration with Spark.

    Raises RegistryUnavailableError if the schema registry does not return the schema of the bodies.
    """
    asking = PipelineSourceSettings(spec=spec, start_offsets=starting, pause_file=pause_file)
    options = asking.source_options()
    value = (
        options.value_format.with_latest_schema(options.tolerance_seconds) if options.value_format is not None else None
    )
    plan = replace(asking, value_format=value)
    return data_source_class(
        FORMAT_NAME, f"{schema_ddl(options.columns, value)}, {LOST_DDL}", lambda: PipelineStreamReader(plan)
    )


class PipelineStreamReader(GroupStreamReader):
    """The reader of a pipeline's source. Its tasks decode only the columns that the pipeline uses."""

    def __init__(self, plan: PipelineSourceSettings) -> None:
        super().__init__(plan, plan.batch_sizer())
        self._options = replace(self._options, used_columns=read_used_columns(plan.pause_file))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return with_lost_messages_row(read_partition(partition, self._options), batch_schema(self._options))


def sink_class(options: SinkOptions) -> type[DataSource]:
    """Return the DataSource class of a group's sink. It has no options, because Spark would display their secrets."""

    class PipelineSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return SINK_FORMAT_NAME

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            return RocketMQWriter(options)

    return PipelineSink


def make_sink(spark: SparkSession, spec: GroupSpec) -> Any:
    """Return the sink of a group, chosen by `sink.format`. Raises RmqdError if the sink is unavailable.

    A sink's `prepare` is called before any row is read, and checks that the sink can store rows of a schema. A sink's
    `write` stores the rows of one micro-batch. If a crash interrupts a batch, `write` is called again for this batch.
    """
    sink = spec.settings.sink
    assert sink is not None
    options = {name: option_text(value) for name, value in sink.options.items()}
    if sink.format == "rocketmq":
        topic = {"topic": sink.topic} if sink.topic else {}
        return TopicSink(spark, spec, {**topic, **options})
    if sink.format == "parquet":
        folder, staging = output_and_staging(spark, sink)
        return ParquetSink(folder, staging, spec.name, tuple(sink.partition_by), options)
    if sink.format == "postgresql":
        try:
            from rmqd.spark.pipelines.postgresql.postgresql_sink import PostgresqlSink
        except ImportError as error:
            run = f"run {install_command('postgresql')}"
            raise RmqdError(f"sink.format: postgresql needs psycopg, but {error}; {run}") from error
        return PostgresqlSink(sink, options, spec.name, spec.topics)
    if sink.format == "delta":
        return DeltaSink(spark, sink, options)
    if sink.format == "jdbc":
        return JdbcSink(spark, options, sink.batch_column)
    return FunctionSink(load_batch_function(spec.name, spec.settings))


def written_batch_check(spark: SparkSession, spec: GroupSpec) -> Callable[[MicroBatch], bool] | None:
    """Return the sink's function that checks whether a batch is stored; None if the sink does not record batches.

    Also make a database refuse batches of previous drivers. So call this before reading the group's checkpoint. Raises
    RmqdError.
    """
    sink = make_sink(spark, spec)
    if refuse_previous_drivers := getattr(sink, "refuse_previous_drivers", None):
        refuse_previous_drivers()
    return getattr(sink, "has_batch", None)


class TopicSink:
    """The sink `rocketmq`: sends each row as a message, at least once. docs/spark.md describes the properties."""

    def __init__(self, spark: SparkSession, spec: GroupSpec, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._spec = spec
        self._options = dict(options)

    def prepare(self, schema: StructType) -> None:
        """Check the sink's options and the columns of the rows. Raises ConfigError with all problems."""
        checked = checked_sink_options(self._options, schema, overwrite=False, default_access=self._spec.access)
        sink = self._spec.settings.sink
        leaves_out = sink is not None and sink.bad_rows == "leave_out"
        self._spark.dataSource.register(sink_class(replace(checked, skips_bad_rows=leaves_out)))

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        frame.write.format(SINK_FORMAT_NAME).mode("append").save()


class FunctionSink:
    """The sink `foreach_batch`: calls the function that `sink.plugin` names with each micro-batch."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def prepare(self, schema: StructType) -> None:
        """Accept every schema. The function may reject rows in `write`."""

    def write(self, frame: DataFrame, batch: MicroBatch) -> None:
        """Call the function. If it raises, the query ends, and the restarted query repeats the batch."""
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
    """Start the streaming query of a group's pipeline. `handler_query` describes the other parameters.

    `shared_folder` is the folder or URL for files that all checkpoints of the group share. Raises RmqdError, before any
    message is read, if the pipeline or its sink is unavailable.
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
        # remove the namespace, so that the pipeline's function sees the topic names of the configuration
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
            raise BatchFailedError(batch.describe_messages(former)) from error

    writer = frame.writeStream.queryName(spec.name).outputMode(settings.sink.output_mode).foreachBatch(write)
    return start_group_query(writer, spec, checkpoint)


def _applied(pipeline: Callable[[Any, Any], Any], name: str, frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Call the pipeline's function. Raises RmqdError if it fails or does not return a streaming DataFrame."""
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
