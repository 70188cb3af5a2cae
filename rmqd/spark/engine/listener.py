"""Spark's word on each micro-batch, as it ends."""

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
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One micro-batch. `empty` ones, of an idle query, come every ten seconds."""

    number: int
    empty: bool
    phases_ms: Mapping[str, int]
    """By Spark's names; `triggerExecution` is the whole."""
    positions: Mapping[MessageQueue, int] = field(default_factory=dict)
    """Where the query is after it, exclusive."""
    retired: int = 0
    """Queues whose places it has dropped."""
    late_rows: int = 0
    """Rows behind the watermark that it has dropped; Spark counts them after its first aggregation."""
    watermark: str = ""
    """Where that stood."""


class ProgressListener(StreamingQueryListener):
    """Hands each progress on. Called in a thread of Spark's; what it raised would only be logged by the JVM."""

    def __init__(self, heard: Callable[[BatchProgress], None]) -> None:
        self._heard = heard

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing: whoever started it knows."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A micro-batch has ended, or the query has been idle for ten seconds."""
        self._heard(progress_of(event.progress))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing: whoever waits for it hears."""


def progress_of(progress: StreamingQueryProgress) -> BatchProgress:
    """What matters of it."""
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
            log.debug("spark.other_source", source=source.description)
    late = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
    watermark = progress.eventTime.get("watermark", "") if late else ""
    return BatchProgress(progress.batchId, not progress.numInputRows, phases, positions, retired, late, watermark)
