"""The Spark data source of a group with a handler or a pipeline, and the streaming query of a group with a handler.

The driver writes the duration of each micro-batch to a file next to the pause file. The source, which runs in a
separate process, reads the duration to choose the size of the next micro-batch. Without this file, the measured
duration would be up to a trigger interval too long, because Spark calls the source when the next micro-batch is due.

A handler's source is the format `rmqd_handler`. Each of its tasks pulls a queue range, handles the messages, and
returns one row, the outcome of the range. The driver receives the outcomes of each micro-batch.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from rmqd.config.model.spark_model import AVAILABLE_NOW
from rmqd.runtime.value_kinds import parse_duration_ms
from rmqd.spark.handlers.range_outcome import TARGET_BATCH_SECONDS, BatchSizer, OnBatch, RangeOutcome
from rmqd.spark.session.queue_range import PullSettings, split_ranges
from rmqd.spark.session.spark_cluster import SparkCluster, cluster_of, values_or_raise
from rmqd.spark.source.group_offsets import GroupOffsetCommitter
from rmqd.spark.source.range_fetch import check_sql_filter, ranges_of
from rmqd.spark.source.source_columns import GROUP_COLUMNS, PERMISSIVE_COLUMNS
from rmqd.spark.source.source_offsets import SourceOffsets
from rmqd.spark.source.source_options import SourceOptions, with_spark_options
from rmqd.spark.source.stream_reader import RocketMQStreamReader
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from rmqd.spark.session.group_spec import GroupSpec


_SUFFIX: Final = ".took"


def store_batch_duration(pause_file: str, batch_id: int, seconds: float) -> None:
    """Write a micro-batch's duration next to `pause_file`, for `BatchDurations`. Ignores OSError."""
    path = Path(pause_file + _SUFFIX)
    with suppress(OSError):
        draft = path.with_suffix(".draft")
        draft.write_text(f"{batch_id} {seconds}")
        os.replace(draft, path)


class BatchDurations:
    """Reads, in the source's process, the durations that `store_batch_duration` wrote on the driver."""

    def __init__(self, pause_file: str) -> None:
        self._path = Path(pause_file + _SUFFIX)
        self._last = ""

    def take_latest(self) -> float | None:
        """Return the last micro-batch's duration in seconds; None if none was written since the last call."""
        try:
            text = self._path.read_text()
        except OSError:
            return None
        if text == self._last:
            return None
        self._last = text
        return float(text.split()[1])


class ResetSafeCommitter(GroupOffsetCommitter):
    """Commits a queue's offset only if the stored offset is between the last commit and the query's offset.

    If the stored offset is outside this range, an operator has reset the group, or a killed broker lost the last
    commits. The driver detects both cases within seconds (`checkpoint_generations`), and a commit would hide them.
    """

    def _due(
        self, cluster: SparkCluster, found: Mapping[MessageQueue, int | None], changed: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        return {
            queue: changed[queue]
            for queue, at in found.items()
            if at is None or self._stored.get(queue, at) <= at <= changed[queue]
        }

    def _is_in_use(self, queues: Mapping[MessageQueue, int]) -> bool:
        return False  # the only member of the group is the driver, which sends the heartbeats

    def _make_retry_topics(self, cluster: SparkCluster, queues: Collection[MessageQueue]) -> None:
        """Do nothing, because brokers create the retry topic when the driver sends heartbeats."""


QUEUE_END_POLL_SECONDS: Final = 0.1  # how long a message of an idle group waits at most until a poll finds it
PULLS_IN_FLIGHT_PER_QUEUE: Final = 8
# a micro-batch should take at most 1/4 of shutdown_timeout, because a stop waits for the end of the micro-batch
BATCHES_PER_SHUTDOWN_TIMEOUT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSourceSettings:
    """The settings of one group's Spark source, sent to each process that runs the source. Picklable."""

    spec: GroupSpec
    start_offsets: Mapping[MessageQueue, int] | None
    """The start offset of each queue. Queues without an entry, or all queues if None, start at the committed offset."""
    pause_file: str
    """While this file exists, no micro-batch starts."""

    @property
    def target_batch_seconds(self) -> float:
        """The target duration of a micro-batch, short enough that a stop can wait for the end of the micro-batch."""
        return max(
            0.1, min(TARGET_BATCH_SECONDS, self.spec.settings.shutdown_timeout_seconds / BATCHES_PER_SHUTDOWN_TIMEOUT)
        )

    def source_options(self) -> SourceOptions:
        """Return the source's options, including the group's `spark.options`. Raises ConfigError for invalid options.

        The source reads the retry topic only for a handler, because a pipeline sends no messages back.
        """
        from rmqd.consumer.assembly import subscription_data_of  # local, because a pipeline's executors do not need it

        spec, settings = self.spec, self.spec.settings
        options = spec.options
        is_pipeline = settings.handler is None
        is_spread = is_pipeline or settings.pull_interval_seconds == 0
        permissive = is_pipeline and settings.on_corrupt_message == "skip"
        own = SourceOptions(
            access=spec.access,
            topics=tuple(options.subscriptions),
            filter_by_topic=subscription_data_of(options, 0),
            include_retry_topic=not is_pipeline,
            columns=PERMISSIVE_COLUMNS if permissive else GROUP_COLUMNS,
            is_permissive=permissive,
            group=options.group,
            commit_offsets=True,
            fetch_interval_seconds=QUEUE_END_POLL_SECONDS,
            fail_on_data_loss=settings.on_offset_illegal == "stop",
            route_refresh_seconds=spec.client_options.poll_name_server_interval_seconds,
            pause_file=self.pause_file,
            pull=PullSettings(
                group=options.group,
                batch_size=settings.pull_batch_size,
                max_in_flight=PULLS_IN_FLIGHT_PER_QUEUE if is_spread else 1,
            ),
        )
        return with_spark_options(own, spec.name, settings)


def data_source_class(format_: str, ddl: str, reader: Callable[[], DataSourceStreamReader]) -> type[DataSource]:
    """Return the DataSource class of one group, for registration as `format_`. Spark instantiates it in each process.

    The class has no options, because Spark displays options, and the group's settings contain secrets.
    """

    class BoundSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_

        def schema(self) -> str:
            return ddl

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return reader()

    return BoundSource


class GroupStreamReader(RocketMQStreamReader):
    """Reads a group's topics, starting at the group's offsets. `pace`, if set, chooses the size of each micro-batch."""

    # if one broker does not answer, the queues of other brokers continue, as on the local engine
    _fails_by_silent_broker = False
    _waits_for_ends = False  # while the source waited, Spark would report to the driver that a batch is running

    def __init__(self, plan: GroupSourceSettings, pace: BatchSizer | None) -> None:
        super().__init__(plan.source_options())
        self._group_plan = plan
        self._group = ResetSafeCommitter(self._options)
        self._pace = pace
        self._times = BatchDurations(plan.pause_file)
        self._under_way: dict[str, Any] | None = None  # end offsets of the planned micro-batch, until it has ended

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the read limit that Spark passes to `latestOffset`, which ignores it if there is a batch sizer."""
        return ReadMaxRows(1) if self._pace is not None else super().getDefaultReadLimit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end offsets of the next micro-batch, limited by the batch sizer; `start` if there is no batch."""
        if self._pace is None:
            return super().latestOffset(start, limit)
        if self._under_way is not None and start == self._under_way:
            self._pace.batch_ended(time.monotonic(), self._times.take_latest())
            self._under_way = None
        size = self._pace.next_size(time.monotonic())
        while not size and self._heads.is_pinned:  # answering "nothing new" would end a bounded query
            time.sleep(0.05)
            size = self._pace.next_size(time.monotonic())
        self._progress.max_offsets = size
        end = super().latestOffset(start, limit)
        if end != start:
            spans = SourceOffsets.from_json(start).ranges(SourceOffsets.from_json(end))
            self._pace.batch_started(sum(high - low for low, high in spans.values()), time.monotonic())
            self._under_way = end
        return end

    def _resolve_start(self) -> SourceOffsets:
        """Return each queue's start offset: from the settings, else the committed offset, else the first message.

        `DriverMembership.store_start_offsets` has committed the start offsets of a new group. So a queue without a
        committed offset was added later.
        """
        cluster, options = cluster_of(self._options.access), self._options
        # without start offsets a missing topic is an error: at a group's first start, the name may be misspelt
        queues = self._subscribed.refreshed(cluster, all_topics=self._group_plan.start_offsets is None)
        check_sql_filter(cluster, options, queues)
        starts = {queue: offset for queue, offset in (self._group_plan.start_offsets or {}).items() if queue in queues}
        committed = values_or_raise(cluster.committed_offsets(options.group, queues - starts.keys()))
        starts |= {queue: offset for queue, offset in committed.items() if offset is not None}
        starts |= values_or_raise(cluster.min_offsets(queues - starts.keys()))
        # commit, so that the query starts at the same offsets if the process ends before Spark has a checkpoint
        self._group.commit_start_offsets(starts)
        return SourceOffsets(starts)


FORMAT_NAME: Final = "rmqd_handler"
OUTCOME_SCHEMA: Final = pa.schema([("outcome", pa.binary())])
MIN_TASK_MESSAGES: Final = 1000  # ranges are not split into tasks that have fewer messages on average


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSourceSettings(GroupSourceSettings):
    """The settings of a handler's source. Picklable."""

    config_key: str
    """A hash of the group's configuration. A worker process starts one handler for each key."""
    handler_slots: int
    """The number of tasks that Spark runs concurrently."""

    def batch_sizer(self) -> BatchSizer:
        settings = self.spec.settings
        concurrency = settings.handler.max_concurrent_calls if settings.handler is not None else 1
        calls = 1 if settings.consume_mode == "orderly" else concurrency
        return BatchSizer(
            # enough messages for a full batch in every handler slot of every task
            self.handler_slots * calls * settings.consume_message_batch_max_size,
            fixed_messages=self.spec.spark.max_offsets_per_trigger,
            max_messages_per_second=settings.pull_rate_limit,
            target_seconds=self.target_batch_seconds,
        )


def handler_source(
    spec: GroupSpec, starting: Mapping[MessageQueue, int] | None, pause_file: str, slots: int
) -> type[DataSource]:
    key = hashlib.sha256(pickle.dumps(spec)).hexdigest()
    plan = HandlerSourceSettings(
        spec=spec, start_offsets=starting, pause_file=pause_file, config_key=key, handler_slots=slots
    )
    return data_source_class(FORMAT_NAME, "outcome binary", lambda: HandlerStreamReader(plan))


class HandlerStreamReader(GroupStreamReader):
    """Reads a group with a handler: plans queue ranges on the driver, and handles each range on an executor."""

    def __init__(self, plan: HandlerSourceSettings) -> None:
        super().__init__(plan, plan.batch_sizer())
        self._plan = plan

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the queue ranges of a micro-batch. Split ranges for idle task slots, unless the group is orderly."""
        spans = SourceOffsets.from_json(start).ranges(SourceOffsets.from_json(end))
        ranges = ranges_of(cluster_of(self._options.access), self._options, spans)
        if self._plan.spec.settings.consume_mode != "orderly":
            pieces = min(self._plan.handler_slots, sum(map(len, ranges)) // MIN_TASK_MESSAGES)
            ranges = split_ranges(ranges, pieces or None, None)
        return [InputPartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called on an executor to handle a range. Yields one row with the range's outcome."""
        from rmqd.spark.handlers.handler_tasks import started_task_handler

        if partition.value is None:  # Spark passes such a partition if the micro-batch has no ranges
            return
        outcome = started_task_handler(self._plan.spec, self._plan.config_key).handle(partition.value)
        yield pa.RecordBatch.from_arrays([pa.array([outcome.encode()], pa.binary())], schema=OUTCOME_SCHEMA)


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

    `checkpoint` is a folder or URL. If it contains no offsets, the query starts at `starting`, or at the group's
    committed offsets if `starting` is None. While `pause_file` exists, no new micro-batch starts. `on_batch` is called
    in this process after each micro-batch, before Spark commits the batch, and again if the batch is repeated after a
    crash. If `on_batch` raises, the query ends.
    """
    spark.dataSource.register(handler_source(spec, starting, pause_file, spark.sparkContext.defaultParallelism))

    def collect(frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        rows = frame.collect()  # runs the handlers; a second Spark action on the frame would run them again
        store_batch_duration(pause_file, batch_id, time.monotonic() - began)
        on_batch([RangeOutcome.decode(row.outcome) for row in rows])

    writer = spark.readStream.format(FORMAT_NAME).load().writeStream.queryName(spec.name).foreachBatch(collect)
    return start_group_query(writer, spec, checkpoint)


def start_group_query(writer: DataStreamWriter, spec: GroupSpec, checkpoint: str) -> StreamingQuery:
    """Start the streaming query with the group's `spark.trigger`. Without a trigger, batches run without pauses."""
    trigger = spec.spark.trigger
    if trigger == AVAILABLE_NOW:
        writer = writer.trigger(availableNow=True)
    else:
        pause_ms = max(1, round(parse_duration_ms(trigger))) if trigger else 0
        writer = writer.trigger(processingTime=f"{pause_ms} milliseconds")
    return writer.option("checkpointLocation", checkpoint).start()
