"""The source in which a group's handler runs: a task reads its range of a queue, and has it handled.

Format `rmqd_handler`, for `handler_query` alone. Its rows are one for each range: what became of it. Which ranges there
are, where they begin and what is committed is the source's business, as for `rocketmq`.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from rmqd.daemon.spark_config import SparkConfig
from rmqd.spark.batch_reader import check_filter, ranges_of
from rmqd.spark.bounds import Bound
from rmqd.spark.cluster import cluster_of, everyone
from rmqd.spark.offsets import Offsets
from rmqd.spark.options import SourceOptions
from rmqd.spark.pace import TARGET_SECONDS, Pace
from rmqd.spark.positions import resolve
from rmqd.spark.queue_range import Filter, PullSettings, split_ranges
from rmqd.spark.stream_reader import RocketMQStreamReader
from rmqd.wire.topics import is_retry_topic

if TYPE_CHECKING:
    from rmqd.spark.group_order import GroupOrder
    from rmqd.wire.message import MessageQueue

NAME: Final = "rmqd_handler"
OUTCOME: Final = pa.schema([("outcome", pa.binary())])
LEAST_PIECE: Final = 1000  # messages for which another task is worth while
PULLS_UNDER_WAY: Final = 8
DRAIN_PART: Final = 4  # of shutdown_timeout, for a batch: a stop may find one just begun


@dataclass(frozen=True, slots=True)
class HandlerPlan:
    """What the source's processes are told. Pickles."""

    order: GroupOrder
    key: str
    """Tells this configuration from others of the group: a worker process starts the handler for each once."""
    starting: Mapping[MessageQueue, int] | None
    pause_file: str
    slots: int
    """Tasks that Spark runs at once."""

    def source_options(self) -> SourceOptions:
        """What is read, in the source's terms."""
        order, settings = self.order, self.order.settings
        filters = {topic: Filter(one.kind, one.expression) for topic, one in settings.subscriptions.items()}
        is_spread = settings.pull_interval == 0
        return SourceOptions(
            nameserver=order.nameserver,
            topics=tuple(settings.subscriptions),
            filters=filters,
            include_retry_topic=True,
            group=order.name,
            commit_offsets=True,
            fail_on_data_loss=settings.on_offset_illegal == "stop",
            route_refresh_seconds=order.config.client.poll_name_server_interval,
            drain_file=self.pause_file,
            pull=PullSettings(
                group=order.name,
                batch_size=settings.pull_batch_size,
                in_flight=PULLS_UNDER_WAY if is_spread else 1,
            ),
        )

    def pace(self) -> Pace:
        """How large batches are."""
        settings = self.order.settings
        concurrency = settings.handler.concurrency if settings.handler is not None else 1
        first = 1 if settings.consume_mode == "orderly" else concurrency
        return Pace(
            2 * self.slots * first,
            fixed=(settings.spark or SparkConfig()).max_offsets_per_trigger,
            per_second=settings.pull_rate_limit,
            target_seconds=max(0.1, min(TARGET_SECONDS, settings.shutdown_timeout / DRAIN_PART)),
        )


def bound_to(
    order: GroupOrder, starting: Mapping[MessageQueue, int] | None, pause_file: str, slots: int
) -> type[DataSource]:
    """The source of one group, to be registered: no options, as Spark shows those, and the order has secrets."""

    class BoundHandlerSource(HandlerSource):
        plan = HandlerPlan(order, hashlib.sha256(pickle.dumps(order)).hexdigest(), starting, pause_file, slots)

    return BoundHandlerSource


class HandlerSource(DataSource):
    """Made anew in several processes; `plan` is of the class."""

    plan: HandlerPlan

    @classmethod
    def name(cls) -> str:
        """What `format()` is given."""
        return NAME

    def schema(self) -> str:
        """One column: an encoded RangeOutcome."""
        return "outcome binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader, which connects to nothing until it is asked."""
        return HandlerStreamReader(self.plan)


class HandlerStreamReader(RocketMQStreamReader):
    """Plans ranges on the driver, and has them handled on executors."""

    def __init__(self, plan: HandlerPlan) -> None:
        super().__init__(plan.source_options())
        self._plan = plan
        self._pace = plan.pace()
        self._under_way: dict[str, Any] | None = None  # the end of the last batch that was made here

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit itself changes from batch to batch: see `latestOffset`."""
        return ReadMaxRows(1)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends, as far as `Pace` lets it go; `start` itself where there is none."""
        if self._under_way is not None and start == self._under_way:
            self._pace.ended(time.monotonic())
            self._under_way = None
        size = self._pace.size(time.monotonic())
        while not size and self._heads.pinned:  # "nothing new" would end what is available now
            time.sleep(0.05)
            size = self._pace.size(time.monotonic())
        self._progress.max_offsets = size
        end = super().latestOffset(start, limit)
        if end != start:
            spans = Offsets.of(start).ranges(Offsets.of(end))
            self._pace.began(sum(high - low for low, high in spans.values()), time.monotonic())
            self._under_way = end
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The ranges between two offsets; an orderly group's are whole, others are cut where tasks would be idle."""
        spans = Offsets.of(start).ranges(Offsets.of(end))
        ranges = ranges_of(cluster_of(self._options.nameserver), self._options, spans)
        if self._plan.order.settings.consume_mode != "orderly":
            pieces = min(self._plan.slots, sum(map(len, ranges)) // LEAST_PIECE)
            ranges = split_ranges(ranges, pieces or None, None)
        return [InputPartition(one) for one in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called on executors: has the range handled, and tells what became of it."""
        from rmqd.spark.handler_process import handler_process

        if partition.value is None:  # Spark makes one where there is nothing to read
            return
        outcome = handler_process(self._plan.order, self._plan.key).handle(partition.value)
        yield pa.RecordBatch.from_arrays([pa.array([outcome.encode()], pa.binary())], schema=OUTCOME)

    def _resolve_start(self) -> Offsets:
        """Where the plan says, else where the group is on the brokers, else by `consume_from_where`, as in Java."""
        cluster, options = cluster_of(self._options.nameserver), self._options
        queues = self._subscribed.now(cluster)
        check_filter(cluster, options, queues)
        starts = {queue: offset for queue, offset in (self._plan.starting or {}).items() if queue in queues}
        committed = everyone(cluster.committed(options.group, queues - starts.keys()))
        starts |= {queue: offset for queue, offset in committed.items() if offset is not None}
        for is_retry in (False, True):
            missing = [queue for queue in queues - starts.keys() if is_retry_topic(queue.topic) == is_retry]
            if missing:
                starts |= resolve(cluster, options, self._from_where(is_retry=is_retry), missing, Bound("latest"))
        # so that the same comes out if the process ends before this is in the checkpoint
        self._group.pin(starts)
        return Offsets(starts)

    def _from_where(self, *, is_retry: bool) -> Bound:
        settings = self._plan.order.settings
        where = settings.consume_from_where
        if where == "first_offset" or (where == "last_offset" and is_retry):
            return Bound("earliest")
        if where == "last_offset" or is_retry:
            return Bound("latest")
        options = settings.consumer_options(self._plan.order.name, self._plan.order.config.state_dir)
        return Bound("timestamp", timestamp_ms=options.consume_timestamp_ms or 0)
