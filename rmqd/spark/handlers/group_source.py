"""The source of a group on Spark, for handlers and pipelines; and the query of a group with a handler.

The driver writes the duration of each micro-batch into the folder of the pause file, and the source sizes the next one
by it. The source runs in a separate process, and would learn of a batch's end only when the next one is due, up to a
trigger's interval later.

A handler's source is the format `rmqd_handler`: its tasks pull a range, handle it and return one row, the outcome of
the range. The driver receives the outcomes of each micro-batch.
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
from rmqd.spark.source.source_columns import DEFAULT_COLUMNS, PERMISSIVE_COLUMNS
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
    """Store the duration of a batch. Raises nothing: without it, the source uses the time until the next poll."""
    path = Path(pause_file + _SUFFIX)
    with suppress(OSError):
        draft = path.with_suffix(".draft")
        draft.write_text(f"{batch_id} {seconds}")
        os.replace(draft, path)


class BatchDurations:
    """Reads the durations that the driver writes."""

    def __init__(self, pause_file: str) -> None:
        self._path = Path(pause_file + _SUFFIX)
        self._last = ""

    def take_latest(self) -> float | None:
        """Return the duration of the last batch in seconds; None if nothing was written since the last call."""
        try:
            text = self._path.read_text()
        except OSError:
            return None
        if text == self._last:
            return None
        self._last = text
        return float(text.split()[1])


class UnmovedOffsetCommitter(GroupOffsetCommitter):
    """Commits only in queues whose stored offset is between the last commit and the query's offset.

    In any other queue an operator has moved the group, or a killed broker forgot the last commits. The driver detects
    that within seconds (`generations`), and decides; a commit before that would hide it.
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
        return False  # the driver itself is the group's only member

    def _make_retry_topics(self, cluster: SparkCluster, queues: Collection[MessageQueue]) -> None:
        """Do nothing: after the driver's heartbeats, brokers create the retry topic."""


QUEUE_END_POLL_SECONDS: Final = 0.1  # maximum delay that polling adds to a message of an idle group
PULLS_IN_FLIGHT_PER_QUEUE: Final = 8
# a batch takes at most 1/4 of shutdown_timeout, because a stop may have to wait for its end
BATCHES_PER_SHUTDOWN_TIMEOUT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSourceSettings:
    """The settings of the source's processes. Picklable."""

    spec: GroupSpec
    start_offsets: Mapping[MessageQueue, int] | None
    """Start offsets. Other queues start at the group's offset on the brokers."""
    pause_file: str
    """While this file exists, no batch starts."""

    @property
    def target_batch_seconds(self) -> float:
        """Target duration of a batch: short enough that a stop can wait for its end."""
        return max(
            0.1, min(TARGET_BATCH_SECONDS, self.spec.settings.shutdown_timeout_seconds / BATCHES_PER_SHUTDOWN_TIMEOUT)
        )

    def source_options(self) -> SourceOptions:
        """Return the options of the source, including `spark.options`. Raises ConfigError if these are invalid.

        The retry topic is read only for a handler, because a pipeline sends nothing back.
        """
        from rmqd.consumer.assembly import subscription_data_of  # executors of a pipeline do not need it

        spec, settings = self.spec, self.spec.settings
        options = spec.options
        is_spread = settings.pull_interval_seconds == 0
        is_pipeline = settings.handler is None
        permissive = is_pipeline and settings.on_corrupt_message == "skip"
        own = SourceOptions(
            access=spec.access,
            topics=tuple(options.subscriptions),
            filter_by_topic=subscription_data_of(options, 0),
            include_retry_topic=not is_pipeline,
            columns=PERMISSIVE_COLUMNS if permissive else DEFAULT_COLUMNS,
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


def source_class(format_: str, ddl: str, reader: Callable[[], DataSourceStreamReader]) -> type[DataSource]:
    """Return the source of one group, to be registered as a format. Spark creates it again in several processes.

    It takes no options, because Spark displays options, and the group's settings contain secrets.
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
    """Reads a group's subscriptions from the group's offsets, in batches sized by `batch_sizer`."""

    # the queues of other brokers continue, as on the local engine; the status shows the silent broker
    _fails_by_silent_broker = False
    _waits_for_ends = False  # the run asks Spark whether a batch is running, and a waiting poll looks like a batch

    def __init__(self, plan: GroupSourceSettings, pace: BatchSizer | None) -> None:
        super().__init__(plan.source_options())
        self._group_plan = plan
        self._group = UnmovedOffsetCommitter(self._options)
        self._pace = pace
        self._times = BatchDurations(plan.pause_file)
        self._under_way: dict[str, Any] | None = None  # the end of the last batch planned here

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit for Spark. With a pace, the real limit changes with each batch, see `latestOffset`."""
        return ReadMaxRows(1) if self._pace is not None else super().getDefaultReadLimit()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, limited by the pace; `start` itself if there is none."""
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
        """Return start offsets: the plan's, else the group's offset on the brokers, else the first message's.

        `DriverMembership.store_start_offsets` has committed the start offsets of a new group, so a queue without an
        offset was added later.
        """
        cluster, options = cluster_of(self._options.access), self._options
        # a later generation continues without a missing topic; at the group's first start its name may be misspelt
        queues = self._subscribed.current(cluster, all_topics=self._group_plan.start_offsets is None)
        check_sql_filter(cluster, options, queues)
        starts = {queue: offset for queue, offset in (self._group_plan.start_offsets or {}).items() if queue in queues}
        committed = values_or_raise(cluster.committed_offsets(options.group, queues - starts.keys()))
        starts |= {queue: offset for queue, offset in committed.items() if offset is not None}
        starts |= values_or_raise(cluster.min_offsets(queues - starts.keys()))
        # commit, so that the start is the same if the process ends before it is in the checkpoint
        self._group.commit_start_offsets(starts)
        return SourceOffsets(starts)


FORMAT_NAME: Final = "rmqd_handler"
OUTCOME_SCHEMA: Final = pa.schema([("outcome", pa.binary())])
MIN_TASK_MESSAGES: Final = 1000  # messages that justify another task


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSourceSettings(GroupSourceSettings):
    """The settings of a handler's source. Picklable."""

    config_key: str
    """A hash of the configuration. A worker process starts a handler once for each key."""
    handler_slots: int
    """Number of tasks that Spark runs concurrently."""

    def batch_sizer(self) -> BatchSizer:
        settings = self.spec.settings
        concurrency = settings.handler.max_calls if settings.handler is not None else 1
        calls = 1 if settings.consume_mode == "orderly" else concurrency
        return BatchSizer(
            # enough messages for every slot of every task, with full batches
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
    return source_class(FORMAT_NAME, "outcome binary", lambda: HandlerStreamReader(plan))


class HandlerStreamReader(GroupStreamReader):
    """Plans ranges on the driver, and handles them on executors."""

    def __init__(self, plan: HandlerSourceSettings) -> None:
        super().__init__(plan, plan.batch_sizer())
        self._plan = plan

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges between two offsets. Unless the group is orderly, they are split if tasks would be idle."""
        spans = SourceOffsets.from_json(start).ranges(SourceOffsets.from_json(end))
        ranges = ranges_of(cluster_of(self._options.access), self._options, spans)
        if self._plan.spec.settings.consume_mode != "orderly":
            pieces = min(self._plan.handler_slots, sum(map(len, ranges)) // MIN_TASK_MESSAGES)
            ranges = split_ranges(ranges, pieces or None, None)
        return [InputPartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called on executors: handle the range, and return its outcome."""
        from rmqd.spark.handlers.handler_tasks import started_task_handler

        if partition.value is None:  # Spark's partition if there is nothing to read
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

    `checkpoint` is a folder or URL. It takes precedence over `start_offsets`, the start offsets of a new query; without
    both, the query starts at the group's offsets on the brokers. While `pause_file` exists, no new batch starts.
    `on_batch` is called in this process after each micro-batch, before the batch counts as done; for a batch repeated
    after a crash it is called again. If it raises, the query ends.
    """
    spark.dataSource.register(handler_source(spec, starting, pause_file, spark.sparkContext.defaultParallelism))

    def collect(frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        rows = frame.collect()  # the only action of the batch, in Spark's sense: it runs the handlers
        store_batch_duration(pause_file, batch_id, time.monotonic() - began)
        on_batch([RangeOutcome.decode(row.outcome) for row in rows])

    writer = spark.readStream.format(FORMAT_NAME).load().writeStream.queryName(spec.name).foreachBatch(collect)
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
