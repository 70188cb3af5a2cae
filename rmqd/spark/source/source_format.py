"""The format `rocketmq`: the data source behind `spark.read.format("rocketmq")` and `spark.readStream`.

This module also reads batches (`spark.read`). With the option `pushdown`, a batch read skips queues, offsets, store
times and tags that the SQL conditions rule out. Spark also applies the conditions to the result, so messages that do
not match are harmless. While spark.sql.python.filterPushdown.enabled is false, its default, Spark rejects every reader
that supports pushdown. So pushdown needs the option.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from rmqd.errors import ConfigError
from rmqd.spark.session.queue_queries import retry_until_timeout
from rmqd.spark.session.queue_range import QueueRange
from rmqd.spark.session.spark_cluster import SparkCluster, cluster_of, values_or_raise
from rmqd.spark.session.spark_process import show_rmqd_errors_without_traceback
from rmqd.spark.source.group_offsets import SubscribedQueues, resolve_bound, start_offsets_of
from rmqd.spark.source.range_fetch import check_sql_filter, partitions_of, ranges_of, read_partition
from rmqd.spark.source.source_columns import names_of_schema, schema_ddl
from rmqd.spark.source.source_offsets import OffsetBound
from rmqd.spark.source.source_options import SourceOptions, parse_options
from rmqd.spark.source.stream_reader import RocketMQStreamReader
from rmqd.spark.values.schema_registry import RegistryUnavailableError
from rmqd.spark.values.value_format import BAD_ROW_COLUMN, VALUE_COLUMN, ValueFormat
from rmqd.wire.bodies.heartbeat_data import SUBSCRIPTION_ALL, SubscriptionData, tag_subscription
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

# widens time bounds, because brokers search store times by bisection, and a clock that was set back breaks their order
CLOCK_TOLERANCE_MS: Final = 5000
PUSHDOWN_QUEUE_COLUMNS: Final = ("topic", "source_topic", "broker", "queue_id")
_ANY: Final = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class RowConditions:
    """SQL conditions that all must hold for a row. Lower bounds are inclusive, upper bounds exclusive."""

    allowed_values: Mapping[str, frozenset[object]] = field(default_factory=dict)
    """For each restricted column, the values that match. Other columns may have any value."""
    offset_bounds: tuple[float, float] = _ANY
    store_time_bounds_ms: tuple[float, float] = _ANY

    def with_allowed_values(self, column: str, values: Collection[object]) -> RowConditions:
        """Return a copy with the condition that the column has one of `values`. Unsupported columns are ignored."""
        if column == "queue_offset":
            numbers = [value for value in values if isinstance(value, int)]
            return self.with_bounds(column, min(numbers), max(numbers)) if numbers else self
        if column not in (*PUSHDOWN_QUEUE_COLUMNS, "tags"):
            return self
        allowed = frozenset(values) & self.allowed_values.get(column, frozenset(values))
        return replace(self, allowed_values={**self.allowed_values, column: allowed})

    def with_bounds(self, column: str, least: object = None, most: object = None) -> RowConditions:
        """Return a copy with the condition that the column is from `least` to `most`, inclusive. None: no bound."""
        if column == "queue_offset":
            low = least if isinstance(least, int) else -math.inf
            end = most + 1 if isinstance(most, int) else math.inf
            return replace(self, offset_bounds=(max(self.offset_bounds[0], low), min(self.offset_bounds[1], end)))
        if column == "store_timestamp":
            low, end = _ms(least, -math.inf) - CLOCK_TOLERANCE_MS, _ms(most, math.inf) + 1 + CLOCK_TOLERANCE_MS
            return replace(
                self,
                store_time_bounds_ms=(max(self.store_time_bounds_ms[0], low), min(self.store_time_bounds_ms[1], end)),
            )
        return self

    def may_match(self, queue: MessageQueue) -> bool:
        values = {"source_topic": queue.topic, "broker": queue.broker_name, "queue_id": queue.queue_id}
        if not is_retry_topic(queue.topic):  # a retry topic has messages of other topics
            values["topic"] = queue.topic
        return all(
            value in self.allowed_values[column] for column, value in values.items() if column in self.allowed_values
        )

    def clip_offsets(self, low: int, high: int) -> tuple[int, int]:
        """Return the part of the range from `low` to before `high` that is within the offset bounds."""
        return int(max(low, self.offset_bounds[0])), int(min(high, self.offset_bounds[1]))

    def tag_filter(self, given: SubscriptionData) -> SubscriptionData:
        """Return the broker-side filter `given`. If `given` filters nothing, return a filter for the allowed tags."""
        tags = self.allowed_values.get("tags")
        if not tags or not given.matches_all_messages or not all(map(_is_tag, tags)):
            return given
        return tag_subscription("", " || ".join(sorted(map(str, tags))), 0)


def _is_tag(value: object) -> bool:
    return (
        isinstance(value, str) and value not in ("", SUBSCRIPTION_ALL) and "|" not in value and value == value.strip()
    )


def _ms(time: object, otherwise: float) -> float:
    return int(time.timestamp() * 1000) if isinstance(time, datetime) and time.tzinfo else otherwise


class RocketMQBatchReader(DataSourceReader):
    """Reads a batch from the start to the end offsets, which are resolved when Spark plans the read."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.conditions = RowConditions()

    @show_rmqd_errors_without_traceback()
    def partitions(self) -> list[InputPartition]:
        """Return one partition for each task. Called on the driver for each action, such as `count()`."""
        options = self._options
        cluster = cluster_of(options.access)
        ranges = retry_until_timeout(lambda: self._ranges(cluster), options.tolerance_seconds)
        return partitions_of(options, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Called on executors. If there is nothing to read, Spark passes a partition whose value is None."""
        return read_partition(partition, self._options)

    def _ranges(self, cluster: SparkCluster) -> list[QueueRange]:
        options = self._options
        queues = SubscribedQueues(options).refreshed(cluster)
        check_sql_filter(cluster, options, queues)
        starts = start_offsets_of(cluster, options, OffsetBound("earliest"), queues)
        # unlike a start time, an end time may be later than all messages
        any_end = replace(options, must_find_timestamp=False)
        ends = resolve_bound(cluster, any_end, options.end_bound, queues, OffsetBound("latest"))
        spans = self._narrowed(cluster, {queue: (starts[queue], ends[queue]) for queue in queues})
        subscription = self.conditions.tag_filter(options.subscription)
        return ranges_of(cluster, replace(options, subscription=subscription), spans)

    def _narrowed(
        self, cluster: SparkCluster, spans: dict[MessageQueue, tuple[int, int]]
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Remove the queues and offsets that the SQL conditions rule out."""
        narrowing = self.conditions
        spans = {queue: narrowing.clip_offsets(*span) for queue, span in spans.items() if narrowing.may_match(queue)}
        for bound_ms, is_start in zip(narrowing.store_time_bounds_ms, (True, False), strict=True):
            if math.isfinite(bound_ms):
                found = values_or_raise(cluster.offsets_at_times(dict.fromkeys(spans, max(int(bound_ms), 0))))
                for queue, (low, high) in spans.items():
                    at = found[queue]
                    spans[queue] = (max(low, at), high) if is_start else (low, min(high, at))
        return spans


class PushdownBatchReader(RocketMQBatchReader):
    """A batch reader with pushdown: Spark passes the SQL conditions to `pushFilters` before it calls `partitions`."""

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:
        """Record the conditions. Return all of them, so that Spark also applies them to the result."""
        for condition in filters:
            self.conditions = _narrowed(self.conditions, condition)
        return filters


def _narrowed(known: RowConditions, condition: spark.Filter) -> RowConditions:
    """Return `known` with one more condition. Conditions on a struct's field, or of another kind, are ignored."""
    match condition:
        case spark.In((column,), values):
            return known.with_allowed_values(column, values)
        case spark.EqualTo((column,), value) | spark.EqualNullSafe((column,), value):
            return known.with_allowed_values(column, [value]).with_bounds(column, value, value)
        case spark.GreaterThan((column,), value) | spark.GreaterThanOrEqual((column,), value):
            return known.with_bounds(column, least=value)
        case spark.LessThan((column,), value) | spark.LessThanOrEqual((column,), value):
            return known.with_bounds(column, most=value)
    return known


class RocketMQSource(DataSource):
    """The data source `rocketmq`. It contains only options, because Spark pickles it for other processes."""

    _pinned: ValueFormat | None = None
    """The schema that the registry returned at `load()`, so that later readers have the same columns."""

    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def schema(self) -> str:
        """Called by `load()`. Return the columns as DDL. Raises ConfigError with all problems of the options."""
        with show_rmqd_errors_without_traceback():
            options = self._parsed()
            return schema_ddl(options.columns, options.value_format)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._parsed_for(schema)
        return PushdownBatchReader(options) if options.uses_pushdown else RocketMQBatchReader(options)

    def streamReader(self, schema: StructType) -> RocketMQStreamReader:
        """Return a stream reader. It opens no connection until it is used."""
        options = self._parsed_for(schema)
        with show_rmqd_errors_without_traceback():
            options.refuse_batch_only_options()
        return RocketMQStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from rmqd.spark.sink.sink_writer import RocketMQWriter, checked_sink_options

        with show_rmqd_errors_without_traceback():
            return RocketMQWriter(checked_sink_options(dict(self.options.items()), schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer for `df.writeStream`. In output mode complete (`overwrite`), each batch sends all rows."""
        from rmqd.spark.sink.sink_writer import RocketMQStreamWriter, checked_sink_options

        with show_rmqd_errors_without_traceback():
            return RocketMQStreamWriter(checked_sink_options(dict(self.options.items()), schema, overwrite=False))

    def _parsed(self) -> SourceOptions:
        options = parse_options(dict(self.options.items()))
        if options.value_format is None or options.value_format.registry is None:
            return options
        if self._pinned is None:
            topics = options.topics or tuple(sorted({queue.topic for queue in options.assigned_queues}))
            try:
                self._pinned = options.value_format.with_default_subject(topics).with_latest_schema(
                    options.tolerance_seconds
                )
            except RegistryUnavailableError as error:
                raise ConfigError([f"valueRegistry: {error}"]) from None
        return replace(options, value_format=self._pinned)

    def _parsed_for(self, schema: StructType) -> SourceOptions:
        """Return the options. If the user set `schema()`, its columns replace the option `columns`."""
        with show_rmqd_errors_without_traceback():
            options = self._parsed()
            if not schema.fields:
                return options
            fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
            names = names_of_schema(fields, options.value_format)
            if options.value_format is not None and VALUE_COLUMN in names:
                options = replace(options, value_format=options.value_format.with_kind(dict(fields)[VALUE_COLUMN]))
            if VALUE_COLUMN in names or BAD_ROW_COLUMN in names:
                schema_ddl(names, options.value_format)  # raises if the type of bodies is unknown
            if names != options.columns and "columns" in options.given_options:
                raise ConfigError(["columns: schema() already sets the columns; use only one of them"])
            return replace(options, columns=names)
