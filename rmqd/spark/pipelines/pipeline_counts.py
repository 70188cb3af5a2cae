"""The micro-batch that a pipeline's sink receives, and message counts from Spark's progress reports.

A pipeline's tasks can return nothing but rows. So a task reports the number of lost messages in an extra row, in the
column LOST_COLUMN. The column is null in the rows of messages. The pipeline's function does not see the column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import functions as f

from rmqd.consumer.stats.counters import TopicStats
from rmqd.errors import RmqdError
from rmqd.spark.handlers.range_outcome import RangeOutcome
from rmqd.spark.source.source_offsets import SourceOffsets, parse_reported_offsets
from rmqd.wire.topics import unwrap_namespace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import StreamingQueryProgress


_MAX_RANGES: Final = 10  # the number of queue ranges that an error lists


class BatchFailedError(RmqdError):
    """A sink failed to write a micro-batch. The text names the batch's messages; `__cause__` is the sink's error."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    query_id: str
    """Spark's id of the query, which is stored in the checkpoint."""
    number: int
    offset_log: bytes = b""
    """The batch's entry in Spark's offset log. A repeated batch has the same entry, a newly planned batch another."""

    def describe_messages(self, former: bytes) -> str:
        """Return the queues and offsets of the batch as text. `former` is the offset log of the previous batch."""
        pairs = zip_longest(_logged_offsets(former), _logged_offsets(self.offset_log), fillvalue=SourceOffsets())
        ranges = [one for start, end in pairs for one in start.ranges(end).items()]
        if not ranges:
            return f"batch {self.number} has no new messages"
        named = [f"{queue}, offsets {low} to {high - 1}" for queue, (low, high) in ranges]
        more = f"; and {len(named) - _MAX_RANGES} queues more" if len(named) > _MAX_RANGES else ""
        return f"batch {self.number} has {'; '.join(named[:_MAX_RANGES])}{more}"

    @property
    def offset_log_id(self) -> str:
        return hashlib.sha256(self.offset_log).hexdigest()[:12]


def _logged_offsets(log: bytes) -> list[SourceOffsets]:
    """Return the end offsets of each source in an offset log, none for foreign sources. They follow two other lines."""
    return [_offsets(line) for line in log.decode().splitlines()[2:]]


def _offsets(value: object) -> SourceOffsets:
    return parse_reported_offsets(value) or SourceOffsets({})


LOST_COLUMN: Final = "rmqd_lost"
LOST_DDL: Final = f"{LOST_COLUMN} bigint"


def with_lost_messages_row(read: Generator[pa.RecordBatch, None, int], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of `read` with LOST_COLUMN added, and one more row with the number of lost messages, if any."""
    lost = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal lost
        lost = yield from read

    for batch in batches():
        yield batch.append_column(LOST_COLUMN, pa.nulls(len(batch), pa.int64()))
    if lost:
        message = [pa.nulls(1, column.type) for column in schema]
        yield pa.RecordBatch.from_arrays([*message, pa.array([lost])], [*schema.names, LOST_COLUMN])


def without_lost_rows(frame: DataFrame) -> DataFrame:
    return frame.where(f"{LOST_COLUMN} IS NULL").drop(LOST_COLUMN)


OBSERVED_NAME: Final = "rmqd_read"


def with_message_counts(frame: DataFrame, topics: Sequence[str]) -> DataFrame:
    """Let Spark count, in each batch, the readable and the corrupt rows of each topic, and all lost messages."""
    is_corrupt = f.isnotnull("decode_error") if "decode_error" in frame.columns else f.lit(False)
    counts = [f.sum(LOST_COLUMN).alias(LOST_COLUMN)]
    for number, topic in enumerate(topics):
        is_of = f.col("topic") == topic
        counts.append(f.count_if(is_of & ~is_corrupt).alias(f"good_{number}"))
        counts.append(f.count_if(is_of & is_corrupt).alias(f"corrupt_{number}"))
    return frame.observe(OBSERVED_NAME, *counts)


def outcomes_of_progress(
    progress: StreamingQueryProgress, topics: Sequence[str], namespace: str = ""
) -> list[RangeOutcome]:
    """Return an outcome for each queue range of a micro-batch. Topic names in counters have no namespace.

    The outcome of a topic's first range contains the counters of the whole topic. The first of all outcomes contains
    the number of all lost messages.
    """
    row = progress.observedMetrics.get(OBSERVED_NAME)
    counts = row.asDict() if row is not None else {}
    snapshots = {}
    for number, topic in enumerate(topics):
        stats = TopicStats(unwrap_namespace(topic, namespace), is_retry=False)
        good, corrupt = counts.get(f"good_{number}") or 0, counts.get(f"corrupt_{number}") or 0
        stats.received = good + corrupt
        stats.handled["acked"], stats.handled["corrupt"] = good, corrupt
        snapshots[topic] = stats.snapshot()
    outcomes: list[RangeOutcome] = []
    for source in progress.sources:
        ranges = _offsets(source.startOffset).ranges(_offsets(source.endOffset))
        for queue, (start, end) in sorted(ranges.items()):
            counted = (snapshots.pop(queue.topic),) if queue.topic in snapshots else ()
            lost = 0 if outcomes else counts.get(LOST_COLUMN) or 0
            outcomes.append(RangeOutcome(queue=queue, start=start, end=end, topic_counters=counted, lost_messages=lost))
    return outcomes
