"""Receives Spark's progress of each micro-batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from pyspark.sql.streaming.listener import StreamingQueryListener

from rmqd.errors import RmqdError
from rmqd.spark.source.offsets import Offsets
from rmqd.wire.message_queue import MessageQueue

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Spark's progress after one micro-batch. An idle query reports an `empty` one every ten seconds."""

    number: int
    empty: bool
    phases_ms: Mapping[str, int]
    """Durations in milliseconds by Spark's names of the phases; `triggerExecution` is the whole batch."""
    positions: Mapping[MessageQueue, int] = field(default_factory=dict)
    """The query's offsets after the batch, exclusive."""
    retired: int = 0
    """Number of queues that the batch removed from the checkpoint."""
    late_rows: int = 0
    """Number of rows dropped because they were behind the watermark. Spark counts them after its first aggregation."""
    watermark: str = ""
    """The watermark of the batch."""


class ProgressListener(StreamingQueryListener):
    """Passes each progress on. Called in a Spark thread. The JVM would only log an exception."""

    def __init__(self, heard: Callable[[BatchProgress], None]) -> None:
        self._heard = heard

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Called after each micro-batch, and every ten seconds while the query is idle."""
        self._heard(progress_of(event.progress))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: RunningQuery waits for the end."""


def progress_of(progress: StreamingQueryProgress) -> BatchProgress:
    """Extract the parts of a progress that the group's figures need."""
    phases = {name: int(milliseconds) for name, milliseconds in progress.durationMs.items()}
    positions: dict[MessageQueue, int] = {}
    retired = 0
    for source in progress.sources:
        try:
            after = Offsets.of(json.loads(source.endOffset)).positions
            positions |= after
            if source.startOffset:  # missing for the first batch
                retired += len(Offsets.of(json.loads(source.startOffset)).positions.keys() - after.keys())
        except (RmqdError, ValueError, TypeError, AttributeError):  # a pipeline may read other sources
            log.debug("spark.source_changed", source=source.description)
    late = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
    watermark = progress.eventTime.get("watermark", "") if late else ""
    return BatchProgress(progress.batchId, not progress.numInputRows, phases, positions, retired, late, watermark)
