"""What a pipeline's micro-batch has read, by Spark's word on it: no executors of ours tell, as with a handler."""

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
    """The frame, with rows counted as they pass: each topic's that can and cannot be read, and what is lost."""
    from pyspark.sql import functions as f

    is_corrupt = f.isnotnull("decode_error") if "decode_error" in frame.columns else f.lit(False)
    counts = [f.sum(LOST).alias(LOST)]
    for number, topic in enumerate(topics):
        is_of = f.col("topic") == topic
        counts.append(f.count_if(is_of & ~is_corrupt).alias(f"good_{number}"))
        counts.append(f.count_if(is_of & is_corrupt).alias(f"corrupt_{number}"))
    return frame.observe(OBSERVED, *counts)


def outcomes_of(progress: StreamingQueryProgress, topics: Sequence[str], namespace: str = "") -> list[RangeOutcome]:
    """The ranges of a micro-batch; the rows of a topic count with its first range, under its name without namespace.

    What all ranges have lost counts with the first one.
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
    """A progress's offsets: of a query's first batch, and of another source's, there are none."""
    tree = json.loads(text) if text and text.startswith("{") else None
    return Offsets.of(tree) if isinstance(tree, dict) and "q" in tree else Offsets({})


class CountingListener(StreamingQueryListener):
    """Tells what each micro-batch of the query of a name has read, until that query ends. Called in Spark's thread."""

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
        """Before the query's first batch."""
        if event.name == self._name:
            self._run = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch has ended, or the query has been idle for ten seconds."""
        progress = event.progress
        if str(progress.runId) == self._run and progress.numInputRows:
            self._on_batch(progress.batchId, outcomes_of(progress, self._topics, self._namespace))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Stop listening: the query has ended, and its last figures are counted already."""
        if str(event.runId) == self._run:
            self._manager.removeListener(self)
