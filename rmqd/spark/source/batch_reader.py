"""Bounded reads: `spark.read.format("rocketmq")`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from rmqd.spark.cluster import Cluster, cluster_of, everyone
from rmqd.spark.patience import patiently
from rmqd.spark.queue_range import QueueRange, share_tasks, split_ranges
from rmqd.spark.source.bounds import Bound
from rmqd.spark.source.columns import VALUE_COLUMNS, Decoding
from rmqd.spark.source.fetch import read_ranges
from rmqd.spark.source.narrowing import Narrowing
from rmqd.spark.source.options import SourceOptions
from rmqd.spark.source.positions import resolve, starts_of
from rmqd.spark.source.short_errors import reason_first
from rmqd.spark.source.subscribed import Subscribed
from rmqd.spark.worker_garbage import freeze_imports
from rmqd.wire.bodies.heartbeat import EXPRESSION_TAG
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]


class RocketMQBatchReader(DataSourceReader):
    """Reads from the starting to the ending offsets, which are fixed when the read is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.narrowing = Narrowing()

    @reason_first()
    def partitions(self) -> list[InputPartition]:
        """Called once for each action, in a process of the driver."""
        options = self._options
        cluster = cluster_of(options.access)
        ranges = patiently(lambda: self._ranges(cluster), options.tolerance_seconds)
        return as_partitions(options, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called on executors. Spark passes a partition of None if there is nothing to read."""
        return read_partition(partition, self._options.decoding)

    def _ranges(self, cluster: Cluster) -> list[QueueRange]:
        options = self._options
        queues = Subscribed(options).now(cluster)
        check_filter(cluster, options, queues)
        starts = starts_of(cluster, options, Bound("earliest"), queues)
        any_end = replace(options, must_find_timestamp=False)  # a read may end at the end of its queue
        ends = resolve(cluster, any_end, options.ending, queues, Bound("latest"))
        spans = self._narrowed(cluster, {queue: (starts[queue], ends[queue]) for queue in queues})
        subscription = self.narrowing.filter(options.subscription)
        return ranges_of(cluster, replace(options, subscription=subscription), spans)

    def _narrowed(
        self, cluster: Cluster, spans: dict[MessageQueue, tuple[int, int]]
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Remove the offsets that the query's conditions rule out."""
        narrowing = self.narrowing
        spans = {queue: narrowing.cut(*span) for queue, span in spans.items() if narrowing.has(queue)}
        first, end = narrowing.stored_ms
        if first is None and end is None:
            return spans
        lows = everyone(cluster.offsets_at({} if first is None else dict.fromkeys(spans, max(first, 0))))
        highs = everyone(cluster.offsets_at({} if end is None else dict.fromkeys(spans, max(end, 0))))
        found = {queue: (lows.get(queue), highs.get(queue)) for queue in spans}
        return {queue: narrowing.cut_by_time(span, found[queue]) for queue, span in spans.items()}


def ranges_of(cluster: Cluster, options: SourceOptions, spans: dict[MessageQueue, tuple[int, int]]) -> list[QueueRange]:
    """Return the non-empty ranges for executors, in order of the queues."""
    return [
        QueueRange(
            topic=queue.topic,
            broker_name=queue.broker_name,
            queue_id=queue.queue_id,
            start=low,
            end=high,
            access=options.access,
            replicas=cluster.replicas(queue),
            subscription=options.filter_of(queue.topic),
            pull=options.pull,
            fail_on_data_loss=options.fail_on_data_loss,
        )
        for queue, (low, high) in sorted(spans.items())
        if low < high
    ]


def as_partitions(options: SourceOptions, ranges: list[QueueRange]) -> list[InputPartition]:
    """Return the partitions, one for each task. Most have a range of one queue."""
    most = options.max_records_per_partition
    pieces = split_ranges(ranges, options.min_partitions, most)
    return [InputPartition(task) for task in share_tasks(pieces, options.max_partitions, most)]


def read_partition(partition: InputPartition, decoding: Decoding) -> Generator[pa.RecordBatch, None, int]:
    """Yield the batches of a partition, none for None. Returns the number of lost messages."""
    if partition.value is None:
        return 0
    try:
        if not decoding.has_values:
            return (yield from read_ranges(partition.value, decoding))
        from rmqd.spark.values.value_columns import ValueColumns

        assert decoding.value is not None
        made = ValueColumns(decoding.value, decoding.columns, decoding.used)
        stored = replace(decoding, columns=made.stored, used=made.used)
        return (yield from made.over(read_ranges(partition.value, stored)))
    finally:
        freeze_imports()  # everything is imported now


def schema_of(decoding: Decoding) -> pa.Schema:
    """Return the schema of the batches that `read_partition` yields."""
    import pyarrow as pa

    from rmqd.spark.source.arrow import arrow_schema

    stored = arrow_schema([name for name in decoding.columns if name not in VALUE_COLUMNS])
    kinds = {field.name: field.type for field in stored}
    if decoding.value is not None:
        from rmqd.spark.values.value_columns import value_types

        kinds |= value_types(decoding.value)
    return pa.schema([(name, kinds[name]) for name in decoding.columns])


def check_filter(cluster: Cluster, options: SourceOptions, queues: frozenset[MessageQueue]) -> None:
    """Raise FilterRefusedError if a broker does not support an SQL condition."""
    filters = {topic: options.filter_of(topic) for topic in sorted({queue.topic for queue in queues})}
    by_sql = {topic: subscription for topic, subscription in filters.items() if subscription.kind != EXPRESSION_TAG}
    if by_sql:
        cluster.check_filters(options.pull.group, by_sql)
