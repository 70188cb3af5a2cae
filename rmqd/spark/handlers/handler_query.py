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
    """Start the query that has a group's messages handled on executors.

    `checkpoint` is a folder or URL, which wins over `starting`: the offsets at which a new one begins. Without them
    that is where the group is on the brokers. While `pause_file` exists, nothing new is taken up. `on_batch` is called
    in this process after each micro-batch, with its id and what became of its ranges, before the batch counts as done;
    for a batch that is repeated after a crash it is called again. What it raises ends the query.
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
    """The writer with the group's trigger."""
    if config.trigger == AVAILABLE_NOW:
        return writer.trigger(availableNow=True)
    how: dict[str, Any] = {"processingTime": interval(config.trigger) if config.trigger else "0 seconds"}
    return writer.trigger(**how)


def interval(text: str) -> str:
    """A duration of the configuration, such as `1500ms`, as Spark writes it."""
    return f"{max(1, round(parse_duration_ms(text)))} milliseconds"
