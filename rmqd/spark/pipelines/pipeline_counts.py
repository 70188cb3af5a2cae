"""Message counts of a pipeline's micro-batches, taken from Spark's progress reports.

Unlike the executors of a handler, a pipeline's executors report nothing to rmqd.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from rmqd.consumer.stats.counters import TopicStats
from rmqd.spark.handlers.outcome import OnBatch, RangeOutcome
from rmqd.spark.pipelines.lost_rows import LOST
from rmqd.spark.source.offsets import Offsets
from rmqd.wire.topics import unwrap_namespace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )
    from pyspark.sql.streaming.query import StreamingQueryManager

OBSERVED: Final = "rmqd_read"


def observed(frame: DataFrame, topics: Sequence[str]) -> DataFrame:
    """Return the frame with Spark metrics: readable and corrupt rows for each topic, and lost messages."""
    from pyspark.sql import functions as f

    is_corrupt = f.isnotnull("decode_error") if "decode_error" in frame.columns else f.lit(False)
    counts = [f.sum(LOST).alias(LOST)]
    for number, topic in enumerate(topics):
        is_of = f.col("topic") == topic
        counts.append(f.count_if(is_of & ~is_corrupt).alias(f"good_{number}"))
        counts.append(f.count_if(is_of & is_corrupt).alias(f"corrupt_{number}"))
    return frame.observe(OBSERVED, *counts)


def outcomes_of(progress: StreamingQueryProgress, topics: Sequence[str], namespace: str = "") -> list[RangeOutcome]:
    """Return the ranges of a micro-batch, with topic names without namespace.

    A topic's rows count with its first range, and the lost messages of all ranges with the first range.
    """
    row = progress.observedMetrics.get(OBSERVED)
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
            lost = 0 if outcomes else counts.get(LOST) or 0
            outcomes.append(RangeOutcome(queue=queue, start=start, end=end, topics=counted, lost=lost))
    return outcomes


def _offsets(text: str | None) -> Offsets:
    """Parse the offsets of a source; empty for a query's first batch and for sources other than RocketMQ."""
    tree = json.loads(text) if text and text.startswith("{") else None
    return Offsets.of(tree) if isinstance(tree, dict) and "q" in tree else Offsets({})


class CountingListener(StreamingQueryListener):
    """Reports the counts of each micro-batch of a named query until that query ends. Called in Spark's thread."""

    def __init__(
        self,
        manager: StreamingQueryManager,
        name: str,
        topics: Sequence[str],
        on_batch: OnBatch,
        namespace: str = "",
    ) -> None:
        self._manager = manager
        self._name = name
        self._topics = tuple(topics)
        self._on_batch = on_batch
        self._namespace = namespace
        self._run = ""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Called before the query's first batch."""
        if event.name == self._name:
            self._run = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Called after each micro-batch, and every ten seconds while the query is idle."""
        progress = event.progress
        if str(progress.runId) == self._run and progress.numInputRows:
            self._on_batch(progress.batchId, outcomes_of(progress, self._topics, self._namespace))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Stop listening when the query ends; its last counts are already reported."""
        if str(event.runId) == self._run:
            self._manager.removeListener(self)
