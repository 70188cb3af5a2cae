"""The parts of a group's run that need Spark or the network, so that tests can replace them.

The driver polls the brokers for the group's offsets, even while its query makes no progress. It also polls the store of
`deduplicate`, because a task that waits for the store reports nothing before its range is settled. Executors may reach
a store that the driver's network does not reach. So an unreachable store counts as a problem of the group only if the
driver has reached it before.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import structlog

from rmqd.client.brokers import Brokers
from rmqd.client.group_reader import GroupReader
from rmqd.client.instance import ClientInstance
from rmqd.consumer.consumer_options import DeduplicationOptions
from rmqd.consumer.handling.held_claims import LEASE_SECONDS
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.handler_api.leases.lease_opening import create_claim_store
from rmqd.handler_api.leases.lease_store import ClaimStoreError, ClaimTerms
from rmqd.runtime.clock import Clock
from rmqd.spark.engine.checkpoint_generations import (
    CheckpointGeneration,
    CheckpointGenerations,
    checkpoint_folder,
    generations_of,
)
from rmqd.spark.engine.driver_membership import DriverMembership, GetProcessQueueInfos
from rmqd.spark.engine.spark_figures import BatchProgress, DriverMetrics, ProgressListener
from rmqd.spark.handlers.group_source import handler_query
from rmqd.spark.handlers.range_outcome import OnBatch
from rmqd.spark.pipelines.pipeline_query import pipeline_query
from rmqd.spark.session.group_spec import GroupSpec, build_session
from rmqd.spark.source.source_offsets import ByQueue
from rmqd.spark.source.source_options import check_spark_options
from rmqd.wire.topics import retry_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


log = structlog.get_logger(__name__)

QUEUE_POLL_SECONDS: Final = 2.0
ROUTE_POLL_SECONDS: Final = 30.0


class QueuePoller:
    """Polls the brokers for the offsets of a group's queues, for its metrics. The poller does not join the group."""

    def __init__(self, spec: GroupSpec, figures: DriverMetrics, clock: Clock) -> None:
        self._group = spec.group
        self._topics = [*spec.topics, retry_topic(spec.group)]
        self._figures = figures
        self._clock = clock
        self._client = ClientInstance(spec.client_options, clock=clock)
        self._reader = GroupReader(Brokers(self._client), spec.group)
        self._routes_at: float | None = None

    async def run(self) -> None:
        """Poll every two seconds until cancelled, then close the connections."""
        try:
            while True:
                await self.poll()
                await asyncio.sleep(QUEUE_POLL_SECONDS)
        finally:
            await self._client.close()

    async def poll(self) -> None:
        now = self._clock.monotonic()
        must_refresh = self._routes_at is None or now - self._routes_at >= ROUTE_POLL_SECONDS
        if must_refresh:
            self._routes_at = now
        await asyncio.gather(*(self._read_topic(topic, must_refresh=must_refresh) for topic in self._topics))

    async def _read_topic(self, topic: str, *, must_refresh: bool) -> None:
        try:
            if must_refresh:
                with suppress(RemotingError):  # if no name server answers, `lag` uses the last known route
                    await self._client.routes.refresh(topic)
            lag = await self._reader.lag(topic)
        except RouteNotFoundError as error:
            if topic == retry_topic(self._group):
                self._figures.set_queue_lags(topic, ())  # brokers create the retry topic at the first heartbeat
            else:
                self._figures.set_topic_failure(topic, str(error))
        except RmqdError as error:
            log.debug("lag.unknown", topic=topic, error=str(error))
            self._figures.set_topic_failure(topic, str(error))
        else:
            self._figures.set_queue_lags(topic, lag.queues)


DEDUPLICATION_STORE_POLL_SECONDS: Final = 5.0


class DeduplicationStorePoller:
    """Polls the store of `deduplicate`, and records in `figures` whether it is available. Acquires no leases."""

    def __init__(self, group: str, options: DeduplicationOptions, figures: DriverMetrics, clock: Clock) -> None:
        terms = ClaimTerms(group, secrets.token_hex(8), LEASE_SECONDS, options.keep_seconds)
        self._store = create_claim_store(options.store, options.url, terms)
        self._log = log.bind(group=group)
        self._figures = figures
        self._clock = clock
        self.has_answered = False
        """Whether the driver has ever reached the store."""
        self._is_reported = False

    async def run(self) -> None:
        """Poll until cancelled, then close the connections."""
        try:
            while True:
                await self.poll()
                await self._clock.sleep(DEDUPLICATION_STORE_POLL_SECONDS)
        finally:
            await self.close()

    async def poll(self) -> None:
        try:
            await self._store.renew(())
        except ClaimStoreError as error:
            if self.has_answered:
                self._figures.set_deduplication_store_failure(str(error))
            elif not self._is_reported:
                self._is_reported = True
                what = "if executors cannot reach the store, no message is handled: see claims.store_away in their logs"
                self._log.warning("spark.claim_store_unreached", error=str(error), consequence=what)
        else:
            self.has_answered = True
            self._figures.set_deduplication_store_failure("")

    async def close(self) -> None:
        await self._store.close()


class GroupRunParts:
    """Creates the parts of one group's run. Call methods that use Spark in a thread, because they block.

    `on_session` is called once, in this thread, with the session that has just started.
    """

    def __init__(
        self, spec: GroupSpec, clock: Clock, on_session: Callable[[SparkSession], None] = lambda session: None
    ) -> None:
        self._spec = spec
        self._clock = clock
        self._on_session = on_session

    def membership(self, on_reset: Callable[[ByQueue], None], held: GetProcessQueueInfos) -> DriverMembership:
        """Return the driver's membership in the group. It connects to no broker before `join`."""
        return DriverMembership(self._spec, on_reset=on_reset, held=held, clock=self._clock)

    def queue_poller(self, figures: DriverMetrics) -> QueuePoller:
        """Return the poller of the group's queues. It connects to no broker before `run` or `poll`."""
        return QueuePoller(self._spec, figures, self._clock)

    def deduplication_store_poller(self, figures: DriverMetrics) -> DeduplicationStorePoller | None:
        """Return the poller of the deduplication store; None if the group has no `deduplicate`. Opens no connection."""
        deduplication = self._spec.options.deduplication
        if deduplication is None:
            return None
        return DeduplicationStorePoller(self._spec.group, deduplication, figures, self._clock)

    def start_session(self, on_progress: Callable[[BatchProgress], None]) -> SparkSession:
        """Start Spark. `on_progress` is called in a Spark thread after each micro-batch.

        Raises RmqdError if Java or PySpark is missing or too old, ConfigError for invalid `spark.options`.
        """
        check_spark_options(self._spec.name, self._spec.settings)
        session = build_session(self._spec)
        self._on_session(session)
        pipeline = self._spec if self._spec.settings.pipeline is not None else None
        session.streams.addListener(ProgressListener(on_progress, pipeline))
        return session

    def checkpoint_generations(self, session: SparkSession) -> CheckpointGenerations:
        return generations_of(self._spec, session)

    def start_query(
        self, session: SparkSession, generation: CheckpointGeneration, pause_file: str, on_batch: OnBatch
    ) -> StreamingQuery:
        told: dict[str, Any] = {
            "checkpoint": generation.path,
            "starting": generation.start_offsets,
            "pause_file": pause_file,
        }
        if self._spec.settings.pipeline is None:
            return handler_query(session, self._spec, **told, on_batch=on_batch)
        return pipeline_query(session, self._spec, **told, shared_folder=checkpoint_folder(self._spec))
