"""The parts of a group's run on Spark. Tests replace them, to test a run without Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmqd.clock import Clock
from rmqd.spark.engine.generations import Generation, Generations, checkpoint_folder, generations_of
from rmqd.spark.engine.listener import BatchProgress, ProgressListener
from rmqd.spark.engine.presence import Held, Presence
from rmqd.spark.engine.queue_places import QueuePlaces
from rmqd.spark.group_order import GroupOrder
from rmqd.spark.handlers.group_options import check_spark_options
from rmqd.spark.handlers.outcome import OnBatch
from rmqd.spark.session import build_session
from rmqd.spark.source.offsets import ByQueue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from rmqd.spark.engine.claim_store_watch import ClaimStoreWatch
    from rmqd.spark.engine.figures import Figures


class SparkParts:
    """The parts of one group's run. Methods that call Spark block, and are called in a thread.

    `on_session` is called once, in that thread, with the session that has just started.
    """

    def __init__(
        self, order: GroupOrder, clock: Clock, on_session: Callable[[SparkSession], None] = lambda session: None
    ) -> None:
        self._order = order
        self._clock = clock
        self._on_session = on_session

    def presence(self, on_reset: Callable[[ByQueue], None], held: Held) -> Presence:
        """Return the group's membership. It opens no connection yet."""
        return Presence(self._order, on_reset=on_reset, held=held, clock=self._clock)

    def places(self, figures: Figures) -> QueuePlaces:
        """Return the poller of the group's queues. It opens no connection yet."""
        return QueuePlaces(self._order, figures, self._clock)

    def claim_store(self, figures: Figures) -> ClaimStoreWatch | None:
        """Return the poller of the store for `deduplicate`; None without it. It opens no connection yet."""
        deduplication = self._order.options.deduplication
        if deduplication is None:
            return None
        from rmqd.spark.engine.claim_store_watch import ClaimStoreWatch  # most groups do not need it

        return ClaimStoreWatch(self._order.group, deduplication, figures, self._clock)

    def session(self, on_progress: Callable[[BatchProgress], None]) -> SparkSession:
        """Start Spark. `on_progress` is called in a Spark thread.

        Raises RmqdError if software is missing or too old, ConfigError for invalid `spark.options`.
        """
        check_spark_options(self._order.name, self._order.settings)
        session = build_session(self._order)
        self._on_session(session)
        session.streams.addListener(ProgressListener(on_progress))
        return session

    def checkpoints(self, session: SparkSession) -> Generations:
        """Return the group's generations, accessed through the session's file systems."""
        return generations_of(self._order, session)

    def start_query(
        self, session: SparkSession, generation: Generation, pause_file: str, on_batch: OnBatch
    ) -> StreamingQuery:
        """Start the query of the group's handler or pipeline."""
        told: dict[str, Any] = {
            "checkpoint": generation.path,
            "starting": generation.starting,
            "pause_file": pause_file,
            "on_batch": on_batch,
        }
        if self._order.settings.pipeline is None:
            from rmqd.spark.handlers.handler_query import handler_query

            return handler_query(session, self._order, **told)
        from rmqd.spark.pipelines.pipeline_query import pipeline_query

        return pipeline_query(session, self._order, **told, kept=checkpoint_folder(self._order))
