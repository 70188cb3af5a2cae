"""The query of a group with a handler: executors handle ranges of queues, and the driver receives their outcomes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rmqd.config.model.quantities import parse_duration_ms
from rmqd.config.model.spark import AVAILABLE_NOW, SparkConfig
from rmqd.spark.handlers.batch_time import note_batch_time
from rmqd.spark.handlers.handler_source import NAME, bound_to
from rmqd.spark.handlers.outcome import OnBatch, RangeOutcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from rmqd.spark.group_order import GroupOrder
    from rmqd.wire.message_queue import MessageQueue


def handler_query(
    spark: SparkSession,
    order: GroupOrder,
    *,
    checkpoint: str,
    starting: Mapping[MessageQueue, int] | None,
    pause_file: str,
    on_batch: OnBatch,
) -> StreamingQuery:
    """Start the query that handles a group's messages on executors.

    `checkpoint` is a folder or URL. It takes precedence over `starting`, the start offsets of a new query; without
    both, the query starts at the group's offsets on the brokers. While `pause_file` exists, no new batch starts.
    `on_batch` is called in this process after each micro-batch, with its id and the outcomes of its ranges, before the
    batch counts as done; for a batch repeated after a crash it is called again. If it raises, the query ends.
    """
    spark.dataSource.register(bound_to(order, starting, pause_file, spark.sparkContext.defaultParallelism))

    def collect(frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        rows = frame.collect()  # the batch's only action: this runs the handlers
        note_batch_time(pause_file, batch_id, time.monotonic() - began)
        on_batch(batch_id, [RangeOutcome.decode(row.outcome) for row in rows])

    writer = spark.readStream.format(NAME).load().writeStream.queryName(order.name).foreachBatch(collect)
    return triggered(writer, order.settings.spark or SparkConfig()).option("checkpointLocation", checkpoint).start()


def triggered(writer: DataStreamWriter, config: SparkConfig) -> DataStreamWriter:
    """Add the group's trigger to the writer."""
    if config.trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    how: dict[str, Any] = {"processingTime": interval(config.trigger) if config.trigger else "0 seconds"}
    return writer.trigger(**how)


def interval(text: str) -> str:
    """Convert a duration of the configuration, such as `1500ms`, to Spark's form."""
    return f"{max(1, round(parse_duration_ms(text)))} milliseconds"
