"""The query of a group with a handler: executors handle ranges of queues, and the driver receives their outcomes.

Its source is the format `rmqd_handler`, whose tasks pull a range, handle it and return one row: the range's outcome. It
chooses ranges, and commits offsets, like the format `rocketmq`.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, InputPartition

from rmqd.config.model.spark_model import AVAILABLE_NOW
from rmqd.runtime.value_kinds import parse_duration_ms
from rmqd.spark.handlers.group_source import GroupPlan, GroupStreamReader, bound_source, note_batch_time
from rmqd.spark.handlers.range_outcome import BatchSizer, OnBatch, RangeOutcome
from rmqd.spark.session.queue_range import split_ranges
from rmqd.spark.session.spark_cluster import cluster_of
from rmqd.spark.source.range_fetch import ranges_of
from rmqd.spark.source.source_offsets import Offsets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from rmqd.spark.session.group_spec import GroupSpec
    from rmqd.wire.message_queue import MessageQueue


NAME: Final = "rmqd_handler"
OUTCOME: Final = pa.schema([("outcome", pa.binary())])
MIN_PIECE: Final = 1000  # messages that justify another task


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerPlan(GroupPlan):
    """The settings of a handler's source. Picklable."""

    key: str
    """A hash of the configuration. A worker process starts a handler once for each key."""
    slots: int
    """Number of tasks that Spark runs concurrently."""

    def pace(self) -> BatchSizer:
        settings = self.spec.settings
        concurrency = settings.handler.max_calls if settings.handler is not None else 1
        calls = 1 if settings.consume_mode == "orderly" else concurrency
        return BatchSizer(
            # enough messages for every slot of every task, with full batches
            self.slots * calls * settings.consume_message_batch_max_size,
            fixed=self.spec.spark.max_offsets_per_trigger,
            per_second=settings.pull_rate_limit,
            target_seconds=self.target_seconds,
        )


def bound_to(
    spec: GroupSpec, starting: Mapping[MessageQueue, int] | None, pause_file: str, slots: int
) -> type[DataSource]:
    key = hashlib.sha256(pickle.dumps(spec)).hexdigest()
    plan = HandlerPlan(spec=spec, starting=starting, pause_file=pause_file, key=key, slots=slots)
    return bound_source(NAME, "outcome binary", lambda: HandlerStreamReader(plan))


class HandlerStreamReader(GroupStreamReader):
    """Plans ranges on the driver, and handles them on executors."""

    def __init__(self, plan: HandlerPlan) -> None:
        super().__init__(plan, plan.pace())
        self._plan = plan

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges between two offsets. Unless the group is orderly, they are split if tasks would be idle."""
        spans = Offsets.of(start).ranges(Offsets.of(end))
        ranges = ranges_of(cluster_of(self._options.access), self._options, spans)
        if self._plan.spec.settings.consume_mode != "orderly":
            pieces = min(self._plan.slots, sum(map(len, ranges)) // MIN_PIECE)
            ranges = split_ranges(ranges, pieces or None, None)
        return [InputPartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called on executors: handle the range, and return its outcome."""
        from rmqd.spark.handlers.handler_tasks import handler_process

        if partition.value is None:  # Spark's partition if there is nothing to read
            return
        outcome = handler_process(self._plan.spec, self._plan.key).handle(partition.value)
        yield pa.RecordBatch.from_arrays([pa.array([outcome.encode()], pa.binary())], schema=OUTCOME)


def handler_query(
    spark: SparkSession,
    spec: GroupSpec,
    *,
    checkpoint: str,
    starting: Mapping[MessageQueue, int] | None,
    pause_file: str,
    on_batch: OnBatch,
) -> StreamingQuery:
    """Start the query that handles a group's messages on executors.

    `checkpoint` is a folder or URL. It takes precedence over `starting`, the start offsets of a new query; without
    both, the query starts at the group's offsets on the brokers. While `pause_file` exists, no new batch starts.
    `on_batch` is called in this process after each micro-batch, before the batch counts as done; for a batch repeated
    after a crash it is called again. If it raises, the query ends.
    """
    spark.dataSource.register(bound_to(spec, starting, pause_file, spark.sparkContext.defaultParallelism))

    def collect(frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        rows = frame.collect()  # the only action of the batch, in Spark's sense: it runs the handlers
        note_batch_time(pause_file, batch_id, time.monotonic() - began)
        on_batch([RangeOutcome.decode(row.outcome) for row in rows])

    writer = spark.readStream.format(NAME).load().writeStream.queryName(spec.name).foreachBatch(collect)
    return start_group_query(writer, spec, checkpoint)


def start_group_query(writer: DataStreamWriter, spec: GroupSpec, checkpoint: str) -> StreamingQuery:
    """Start a query with the group's trigger."""
    trigger = spec.spark.trigger
    if trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    else:
        pause_ms = max(1, round(parse_duration_ms(trigger))) if trigger else 0
        writer = writer.trigger(processingTime=f"{pause_ms} milliseconds")
    return writer.option("checkpointLocation", checkpoint).start()
