"""The streaming query of a group with a pipeline: source, pipeline function and sink."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rmqd.config.model.spark import SparkConfig
from rmqd.errors import RmqdError
from rmqd.plugins.entry_points import why
from rmqd.plugins.pipelines import load_pipeline
from rmqd.spark.hadoop_folder import HadoopFolder
from rmqd.spark.handlers.group_source import GroupPlan
from rmqd.spark.handlers.handler_query import triggered
from rmqd.spark.handlers.outcome import OnBatch
from rmqd.spark.pipelines.lost_rows import messages_of
from rmqd.spark.pipelines.micro_batch import BatchFailedError, MicroBatch
from rmqd.spark.pipelines.pinned_schema import with_pinned_schema
from rmqd.spark.pipelines.pipeline_counts import CountingListener, observed
from rmqd.spark.pipelines.pipeline_sinks import TopicSink, make_sink
from rmqd.spark.pipelines.pipeline_source import NAME, pipeline_source
from rmqd.spark.pipelines.postgresql.postgresql_sink import PostgresqlSink
from rmqd.spark.pipelines.used_columns import note_used_columns, used_columns
from rmqd.spark.sink.row_place import PLACE
from rmqd.spark.sink.writer import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from rmqd.spark.group_order import GroupOrder
    from rmqd.wire.message_queue import MessageQueue


def pipeline_query(
    spark: SparkSession,
    order: GroupOrder,
    *,
    checkpoint: str,
    starting: Mapping[MessageQueue, int] | None,
    pause_file: str,
    on_batch: OnBatch,
    kept: str = "",
) -> StreamingQuery:
    """Start the streaming query of a group's pipeline. The parameters are the same as in `handler_query`.

    `kept` is the folder or URL of files that all checkpoints of the group share; the default is a sibling of the
    checkpoint. `on_batch` is called in a Spark thread soon after a micro-batch is done, with the ranges that it read.
    Raises RmqdError before anything is read if the pipeline or its sink is unavailable.
    """
    plan = GroupPlan(order=order, starting=starting, pause_file=pause_file)
    beside = HadoopFolder(spark, kept) if kept else HadoopFolder(spark, checkpoint).sibling("kept")
    order = with_pinned_schema(order, plan.source_options(), starting, beside)
    settings = order.settings
    assert settings.pipeline is not None
    assert settings.sink is not None
    topics, namespace = order.topics, order.client_options.namespace
    spark.dataSource.register(pipeline_source(order, starting, pause_file))
    read = messages_of(observed(spark.readStream.format(NAME).load(), topics))
    if "decode_error" in read.columns:
        read = read.where("decode_error IS NULL").drop("decode_error")
    if namespace:
        read = _plain(read, namespace)
    frame = _applied(load_pipeline(order.name, settings), settings.pipeline.plugin, read, spark)
    note_used_columns(pause_file, used_columns(frame, NAME))
    sink = make_sink(spark, order)
    keeps_place = isinstance(sink, PostgresqlSink | TopicSink)
    sink.prepare((frame if keeps_place else frame.drop(PLACE)).schema)
    plans = HadoopFolder(spark, checkpoint)

    def write(batch_frame: DataFrame, batch_id: int) -> None:
        query = batch_frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID) or ""
        batch = MicroBatch(query, batch_id, plans.read(f"offsets/{batch_id}"))
        try:
            sink.write(batch_frame if keeps_place else batch_frame.drop(PLACE), batch)
        except Exception as error:
            former = plans.read(f"offsets/{batch_id - 1}") if batch_id else b""
            raise BatchFailedError(batch.messages_since(former)) from error

    writer = frame.writeStream.queryName(order.name).outputMode(settings.sink.output_mode).foreachBatch(write)
    triggering = triggered(writer, settings.spark or SparkConfig()).option("checkpointLocation", checkpoint)
    counting = CountingListener(spark.streams, order.name, topics, on_batch, namespace)
    spark.streams.addListener(counting)
    try:
        return triggering.start()
    except BaseException:
        spark.streams.removeListener(counting)
        raise


def _plain(frame: DataFrame, namespace: str) -> DataFrame:
    """Replace the topics of the rows by the topics of the configuration, which have no namespace."""
    from pyspark.sql import functions as f

    return frame.withColumn("topic", f.regexp_replace("topic", f"^((?:%RETRY%|%DLQ%)?){re.escape(namespace)}%", "$1"))


def _applied(pipeline: Callable[[Any, Any], Any], name: str, frame: DataFrame, spark: SparkSession) -> DataFrame:
    """Return the result of the pipeline. Raises RmqdError if it is not a streaming DataFrame."""
    from pyspark.sql import DataFrame

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
