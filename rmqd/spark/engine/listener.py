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
    """Spark's progress of one micro-batch. An idle query reports an `empty` one every ten seconds."""

    number: int
    empty: bool
    phases_ms: Mapping[str, int]
    """The phases' durations in milliseconds by Spark's names; `triggerExecution` is the whole batch."""
    positions: Mapping[MessageQueue, int] = field(default_factory=dict)
    """The query's offsets after the batch, exclusive."""
    retired: int = 0
    """How many queues the batch has dropped from the checkpoint."""
    late_rows: int = 0
    """How many rows behind the watermark were dropped. Spark counts them after its first aggregation."""
    watermark: str = ""
    """The watermark of the batch."""


class ProgressListener(StreamingQueryListener):
    """Hands each progress on. Called in a thread of Spark's. An exception would only be logged by the JVM."""

    def __init__(self, heard: Callable[[BatchProgress], None]) -> None:
        self._heard = heard

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Hand on the progress of a micro-batch that has ended, or of a query that was idle for ten seconds."""
        self._heard(progress_of(event.progress))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: RunningQuery waits for the end."""


def progress_of(progress: StreamingQueryProgress) -> BatchProgress:
    """The parts of a progress that figures need."""
    phases = {name: int(milliseconds) for name, milliseconds in progress.durationMs.items()}
    positions: dict[MessageQueue, int] = {}
    retired = 0
    for source in progress.sources:
        try:
            after = Offsets.of(json.loads(source.endOffset)).positions
            positions |= after
            if source.startOffset:  # the first batch has none
                retired += len(Offsets.of(json.loads(source.startOffset)).positions.keys() - after.keys())
        except (RmqdError, ValueError, TypeError, AttributeError):  # a pipeline may read what is none of ours
            log.debug("spark.source_changed", source=source.description)
    late = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
    watermark = progress.eventTime.get("watermark", "") if late else ""
    return BatchProgress(progress.batchId, not progress.numInputRows, phases, positions, retired, late, watermark)
