"""The metrics of a group on Spark, from the executors' outcomes, Spark's progress and the brokers' answers.

Executors return an outcome for each range of a queue that they handled. Spark reports progress for each micro-batch.
The lag may grow while no micro-batch ends, so the driver polls the brokers for the queues' end offsets every few
seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.sql.streaming.listener import StreamingQueryListener

from rmqd.client.group_reader import QueueLag
from rmqd.client.sending.trace_dispatcher import TRACE_RESULTS
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.consumer.health.group_status import RecentAttempts
from rmqd.consumer.pauses import Pauses
from rmqd.consumer.stats.counters import GroupProblems
from rmqd.consumer.stats.stats_snapshot import (
    BATCH_PHASES,
    BatchesSnapshot,
    GroupSnapshot,
    QueueSnapshot,
    TopicSnapshot,
    merge_topics,
)
from rmqd.daemon.groups.spark_group import blank_snapshot
from rmqd.runtime.clock import Clock
from rmqd.runtime.histogram import Histogram
from rmqd.runtime.plain_text import duration
from rmqd.spark.handlers.range_outcome import RangeOutcome
from rmqd.spark.pipelines.pipeline_counts import outcomes_of_progress
from rmqd.spark.source.source_offsets import parse_reported_offsets
from rmqd.wire.bodies.group_bodies import ProcessQueueInfo
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

    from rmqd.spark.session.group_spec import GroupSpec


log = structlog.get_logger(__name__)

BATCH_DURATION_BOUNDS_SECONDS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
QUEUE_STALL_SECONDS: Final = 120.0  # longer than on the local engine: a queue advances only after a whole micro-batch
# rmqd's names for the phases of a micro-batch, by Spark's names
PHASE_BY_SPARK_NAME: Final = {
    "latestOffset": "asking_offsets",
    "getBatch": "asking_offsets",
    "queryPlanning": "planning",
    "walCommit": "logging_offsets",
    "addBatch": "handling",
    "commitOffsets": "logging_commit",
    "commitBatch": "logging_commit",
}
WHOLE_BATCH_PHASE: Final = "triggerExecution"


class DriverMetrics:
    """The metrics of one driver. Call methods only in the driver's event loop."""

    def __init__(self, options: ConsumerOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._log = log.bind(group=options.group)
        self._blank = blank_snapshot(options)
        self._topics: tuple[TopicSnapshot, ...] = self._blank.topics
        self._hook_failures, self._left_out = Counter[str](), Counter[str]()
        self._trace_records = Counter(dict.fromkeys(() if options.trace is None else TRACE_RESULTS, 0))
        self._durations = Histogram(BATCH_DURATION_BOUNDS_SECONDS)
        self._phases = dict.fromkeys(BATCH_PHASES, 0.0)
        self._last_end: float | None = None
        self._lost = 0
        self._retired = 0
        self._late_rows = 0
        self._positions: dict[MessageQueue, int] = {}
        self._moved_at = clock.wall()
        self._queues: dict[MessageQueue, _Queue] = {}
        self.handler_hung = False
        """Whether the group failed because handlers hang in all slots of an executor's process."""
        self._results = RecentAttempts(clock)
        self._problems = GroupProblems()
        self._unknown: dict[str, str] = {}
        self._answered: set[str] = set()

    def count_outcomes(self, outcomes: Iterable[RangeOutcome]) -> None:
        """Add the results of ranges that executors have handled."""
        for outcome in outcomes:
            self._topics = merge_topics(self._topics, outcome.topic_counters)
            self._lost += outcome.lost_messages
            self._hook_failures.update(outcome.hook_failures)
            self._left_out.update(outcome.skipped_by_hooks)
            self._trace_records.update(outcome.trace_records)

        self._results.poll(self._topics)
        with structlog.contextvars.bound_contextvars(group=self._options.group):
            self._problems.set("handler", self._results.problem)

    def set_deduplication_store_failure(self, failure: str) -> None:
        """Record why the driver cannot reach the store of `deduplicate`; `failure` is empty if it can."""
        evidence = f"the driver cannot reach the store of deduplicate, so messages may wait: {failure}"
        with structlog.contextvars.bound_contextvars(group=self._options.group):
            self._problems.set("claims", make_problem("claim_store_away", evidence) if failure else None)

    def record_batch(self, progress: BatchProgress) -> None:
        if progress.outcomes:
            self.count_outcomes(progress.outcomes)
        self._positions |= progress.end_offsets
        self._retired += progress.removed_queues
        if progress.late_rows:
            self._late_rows += progress.late_rows
            self._log.warning("spark.late_rows_dropped", rows=progress.late_rows, watermark=progress.watermark)
        if progress.is_empty:
            return
        self._last_end = self._clock.wall()
        self._durations.observe(progress.phases_ms.get(WHOLE_BATCH_PHASE, 0) / 1000)
        for name, milliseconds in progress.phases_ms.items():
            if name in PHASE_BY_SPARK_NAME:
                self._phases[PHASE_BY_SPARK_NAME[name]] += milliseconds / 1000

    def set_start_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Record the offsets at which a new query starts after the group was moved."""
        self._positions |= offsets
        self._moved_at = self._clock.wall()

    def process_queue_infos(self) -> dict[MessageQueue, ProcessQueueInfo]:
        """Return the query's offset of each queue, in the form in which a Java consumer reports its process queues."""
        moved_ms = int(self._moved_at * 1000)
        return {
            queue: ProcessQueueInfo(commit_offset=position, last_lock_timestamp=moved_ms)
            for queue, position in self._positions.items()
        }

    def set_queue_lags(self, topic: str, lags: Iterable[QueueLag]) -> None:
        """Record the brokers' answer for a topic, or the retry topic: the offsets and lags of all its queues."""
        self._unknown.pop(topic, None)
        self._answered.add(topic)
        found = {MessageQueue(topic, lag.broker, lag.queue): lag for lag in lags}
        for gone in [queue for queue in self._queues if queue.topic == topic and queue not in found]:
            del self._queues[gone]
        for queue, lag in found.items():
            self._queues.setdefault(queue, _Queue(self._clock)).set_lag(lag)

    def set_topic_failure(self, topic: str, reason: str) -> None:
        """Record why the lags of a topic's queues are unknown, usually because a broker did not answer."""
        self._unknown[topic] = reason

    def snapshot(
        self, state: str, failure: str | None, client_id: str, pauses: Pauses, *, handling: bool
    ) -> GroupSnapshot:
        """Return the group's current snapshot. `handling` means that a micro-batch is running."""
        is_over = state in ("failed", "stopped")
        work = "waiting" if state == "starting" else "handling" if handling else "pulling"
        reason = self._not_ready(state)
        return replace(
            self._blank,
            state=state,
            failure=failure,
            client_id=client_id,
            paused=pauses.is_whole_group_paused,
            pauses=pauses.scopes,
            ready=reason is None,
            not_ready_reason=reason,
            topics=self._topics,
            queues=()
            if is_over
            else tuple(self._queue(queue, pauses.is_whole_group_paused, work) for queue in sorted(self._queues)),
            assigned={
                topic: 0 if is_over else sum(queue.topic == topic for queue in self._queues)
                for topic in self._options.subscriptions
            },
            hook_failures=dict(self._hook_failures),
            left_out_by_hooks=dict(self._left_out),
            trace_records=dict(self._trace_records),
            handler_hung=self.handler_hung,
            problems=tuple(self._problems),
            rates=self._results.rates(self._topics),
            batches=BatchesSnapshot(
                self._durations.snapshot(),
                dict(self._phases),
                self._last_end,
                self._lost,
                self._retired,
                self._late_rows,
            ),
        )

    def _not_ready(self, state: str) -> str | None:
        group = self._options.group
        if state == "starting":
            return self._blank.not_ready_reason
        if state != "running":
            return f"group {group} is {state}"
        missing = sorted(set(self._options.subscriptions) - self._answered)
        if not missing:
            return None
        why = "; ".join(dict.fromkeys(self._unknown[topic] for topic in missing if topic in self._unknown))
        waits = f"group {group} waits for the queues of {', '.join(missing)}"
        return f"{waits}: {why}" if why else waits

    def _queue(self, queue: MessageQueue, paused: bool, work: str) -> QueueSnapshot:
        # if the group has one topic, its retry queues are shown under this topic, as on the local engine
        is_retry, topics = is_retry_topic(queue.topic), list(self._options.subscriptions)
        topic = topics[0] if is_retry and len(topics) == 1 else queue.topic
        entry = self._queues[queue]
        stall, lag = self._stall(queue, entry, paused), entry.lag
        self._log_stall(queue, entry, stall)
        entry.set_state("stuck" if stall is not None else "paused" if paused else work if lag.lag else "waiting")
        return QueueSnapshot(
            topic=topic,
            is_retry=is_retry,
            broker=queue.broker_name,
            queue=queue.queue_id,
            state=entry.state,
            since=entry.since,
            committed=lag.committed,
            max=lag.max,
            lag=lag.lag,
            lag_seconds=lag.lag_seconds,
            position=self._positions.get(queue, lag.committed),
            last_commit=entry.last_commit,
            stall=stall,
        )

    def _log_stall(self, queue: MessageQueue, entry: _Queue, stall: Problem | None) -> None:
        """Log once when a queue stalls or the cause changes, and once when the queue recovers."""
        told, entry.told = entry.told, "" if stall is None else stall.cause
        if stall is not None and stall.cause != told:
            facts = {"topic": queue.topic, "broker": queue.broker_name, "queues": [queue.queue_id]}
            self._log.error("queue.stalled", **facts, cause=stall.cause, evidence=stall.evidence, next=stall.next)
        elif stall is None and told:
            self._log.info("queue.recovered", queue=str(queue), cause=told)

    def _stall(self, queue: MessageQueue, entry: _Queue, paused: bool) -> Problem | None:
        if queue.topic in self._unknown:
            what = "check that the brokers run and are reachable; the query waits for them for a minute, then it fails"
            return make_problem("broker_unreachable", self._unknown[queue.topic], step=what)
        seconds = self._clock.monotonic() - entry.moved_at
        if paused or not entry.lag.lag or seconds < QUEUE_STALL_SECONDS:
            return None
        evidence = f"{entry.lag.lag} messages wait, and the offset has not changed for {duration(seconds)}"
        what = "look for slow handlers and failing tasks in the log: a micro-batch ends when its slowest queue is done"
        return make_problem("stalled_queue", evidence, step=what)


class _Queue:
    """The state of a queue. `since` is the wall-clock time, in seconds, at which the state began."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lag = QueueLag("", 0, None, 0, 0, 0, 0.0)
        self.state = "waiting"
        self.since = clock.wall()
        self.moved_at = clock.monotonic()
        self.last_commit: float | None = None
        self.told = ""  # cause of the stall that was logged last; empty if the queue is not stalled

    def set_lag(self, lag: QueueLag) -> None:
        if lag.committed != self.lag.committed or not lag.lag or not self.lag.lag:
            self.moved_at = self._clock.monotonic()
        if lag.committed is not None and lag.committed != self.lag.committed and self.lag.broker:
            self.last_commit = self._clock.wall()
        self.lag = lag

    def set_state(self, state: str) -> None:
        if state != self.state:
            self.state, self.since = state, self._clock.wall()


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Spark's progress after one micro-batch. While a query is idle, Spark reports an empty progress every 10 s."""

    is_empty: bool
    phases_ms: Mapping[str, int] = field(default_factory=dict)
    """Durations in milliseconds by Spark's names of the phases; `triggerExecution` is the whole batch."""
    end_offsets: Mapping[MessageQueue, int] = field(default_factory=dict)
    """The query's offsets after the batch, exclusive."""
    removed_queues: int = 0
    """Number of queues that the batch removed from the checkpoint."""
    late_rows: int = 0
    """Number of rows dropped because they were behind the watermark. Spark counts rows after its first aggregation."""
    watermark: str = ""
    """The watermark, as text, if the batch dropped late rows; else empty."""
    outcomes: Sequence[RangeOutcome] = ()
    """The outcomes of a pipeline's ranges. Empty for a handler, because executors return a handler's outcomes."""


class ProgressListener(StreamingQueryListener):
    """Calls `heard` with the progress of each micro-batch, in a Spark thread. If `heard` raises, the JVM logs it."""

    def __init__(self, heard: Callable[[BatchProgress], None], pipeline: GroupSpec | None = None) -> None:
        self._heard = heard
        self._pipeline = pipeline

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Called after each micro-batch, and every ten seconds while the query is idle."""
        self._heard(batch_progress_of(event.progress, self._pipeline))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: RunningQuery waits for the end."""


def batch_progress_of(progress: StreamingQueryProgress, pipeline: GroupSpec | None = None) -> BatchProgress:
    """Return the values of Spark's progress that the metrics need. `pipeline` is the group if it has a pipeline."""
    phases = {name: int(milliseconds) for name, milliseconds in progress.durationMs.items()}
    positions: dict[MessageQueue, int] = {}
    retired = 0
    for source in progress.sources:
        if (end := parse_reported_offsets(source.endOffset)) is None:  # another source, which a pipeline joins
            log.debug("spark.source_changed", source=source.description)
            continue
        positions |= end.ends
        if (start := parse_reported_offsets(source.startOffset)) is not None:
            retired += len(start.ends.keys() - end.ends.keys())
    late = sum(operator.numRowsDroppedByWatermark for operator in progress.stateOperators)
    watermark = progress.eventTime.get("watermark", "") if late else ""
    outcomes: Sequence[RangeOutcome] = ()
    if pipeline is not None and progress.name == pipeline.name and progress.numInputRows:
        outcomes = outcomes_of_progress(progress, pipeline.topics, pipeline.client_options.namespace)
    return BatchProgress(not progress.numInputRows, phases, positions, retired, late, watermark, outcomes)
