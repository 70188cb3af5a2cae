"""The queues and counts in Spark's report of a micro-batch."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from tests.spark.embedded_broker import queue
from tests.spark.needed import need

need("pyspark")

from rmqd.spark.engine.spark_figures import batch_progress_of  # noqa: E402
from rmqd.spark.source.source_offsets import SourceOffsets  # noqa: E402
from tests.spark.group_queries import order_of  # noqa: E402

NEW, OLD = queue("orders", 0), queue("bills", 0)


def progress(start: SourceOffsets | None, end: SourceOffsets, late: tuple[int, ...] = ()) -> Any:
    """As Spark reports it: offsets are texts, and there are none before the first batch."""
    source = SimpleNamespace(
        description="rocketmq",
        startOffset=None if start is None else json.dumps(start.to_json()),
        endOffset=json.dumps(end.to_json()),
    )
    others = SimpleNamespace(description="rate", startOffset="1", endOffset="2")
    return SimpleNamespace(
        name="archive",
        numInputRows=5,
        durationMs={"addBatch": 7},
        sources=[source, others],
        stateOperators=[SimpleNamespace(numRowsDroppedByWatermark=count) for count in late],
        eventTime={"watermark": "2026-03-01T10:04:00.000Z"},
    )


def test_a_removed_queue_is_counted() -> None:
    found = batch_progress_of(progress(SourceOffsets({NEW: 1, OLD: 4}), SourceOffsets({NEW: 6})))
    assert (found.end_offsets, found.removed_queues, found.is_empty) == ({NEW: 6}, 1, False)


def test_late_rows_are_counted() -> None:
    """The sum of all operators with a state."""
    found = batch_progress_of(progress(None, SourceOffsets({NEW: 6}), late=(2, 1)))
    assert (found.late_rows, found.watermark) == (3, "2026-03-01T10:04:00.000Z")
    assert batch_progress_of(progress(None, SourceOffsets({NEW: 6}))).late_rows == 0


def test_unchanged_and_new_queues_are_not_counted_as_removed() -> None:
    assert batch_progress_of(progress(SourceOffsets({OLD: 4}), SourceOffsets({NEW: 6, OLD: 4}))).removed_queues == 0
    assert batch_progress_of(progress(None, SourceOffsets({NEW: 6}))).removed_queues == 0


def test_messages_that_a_pipeline_has_read_are_counted() -> None:
    """A topic's counts belong to its first range. Executors count a handler's messages, an idle query none."""
    pipeline = order_of("127.0.0.1:1")
    told = progress(SourceOffsets({NEW: 1, OLD: 4}), SourceOffsets({NEW: 6, OLD: 4}))
    counts = {"good_0": 3, "corrupt_0": 1, "rmqd_lost": 2}
    told.observedMetrics = {"rmqd_read": SimpleNamespace(asDict=lambda: counts)}
    (outcome,) = batch_progress_of(told, pipeline).outcomes
    assert (outcome.queue, outcome.start, outcome.end, outcome.lost_messages) == (NEW, 1, 6, 2)
    (topic,) = outcome.topic_counters
    assert (topic.topic, topic.received, topic.handled["acked"], topic.handled["corrupt"]) == ("orders", 4, 3, 1)
    assert not batch_progress_of(told).outcomes
    told.name = "another query of the session"
    assert not batch_progress_of(told, pipeline).outcomes
    told.name, told.numInputRows = "archive", 0
    assert not batch_progress_of(told, pipeline).outcomes
