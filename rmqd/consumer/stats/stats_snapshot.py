"""Snapshots of a consumer group: plain picklable values for metrics and the status page.

The values of one queue are read without an `await` in between, so they are consistent. The same applies to a group's
values without its queues. The daemon reads many queues in slices. Counters never decrease while one consumer runs. A
caller that follows a group over several consumers (a restart, a lost worker) adds up the counters of all consumers.

Each field declares its metric and the rule that merges the values of several processes (`runtime.figures`).
docs/metrics.md lists the metrics.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass
from typing import Any

from rmqd.consumer.canary import CanarySnapshot
from rmqd.consumer.circuit import CIRCUIT_STATES, CircuitSnapshot
from rmqd.consumer.health.causes import GROUP_CAUSES, STALL_CAUSES, Problem
from rmqd.consumer.pauses import PauseScope
from rmqd.runtime.figures import Metric, add_each, counter, figure, gauge, histogram, if_known, merge_two, unique_values
from rmqd.runtime.histogram import HistogramSnapshot

HANDLED_RESULTS = ("acked", "retried", "dead_lettered", "expired", "corrupt")
FLOW_CONTROL_REASONS = ("count", "size", "span", "paused")
# Causes of a dead letter: the handler's decision, used-up attempts, delay level -1, a corrupt message.
DEAD_LETTER_CAUSES = ("handler", "limit", "level", "corrupt")
# Causes of an offset that fell below the committed one: an operator's reset, a correction by the broker
# (`on_offset_illegal`), an acquisition with a lower stored offset.
FALL_CAUSES = ("operator", "corrected", "take_over")
# Causes of repeated messages. `lock_lost` is about orderly groups, `task_failed` about Spark, the last two about POP.
REPEAT_CAUSES = ("handed_over", "stopped", "offset_moved", "lock_lost", "task_failed", "invisible_time", "ack_refused")
HANDLER_RATES = ("handled", "failed", "retried", "dead_lettered")
# A queue's state is the first in this list that applies.
QUEUE_STATES = ("stuck", "paused", "locked_out", "flow_controlled", "retrying", "handling", "pulling", "waiting")
GROUP_STATES = ("starting", "running", "draining", "failed", "stopped")
MAX_ERROR_CHARACTERS = 500
MAX_ERRORS = 5  # newest errors for each topic
MAX_TRACE_LINES = 6
MAX_REASONS = 20  # dead-letter reasons for each topic; others count as OTHER_REASONS
MAX_REASON_CHARACTERS = 200
OTHER_REASONS = "other reasons"
MAX_MEMBERS = 200  # named members for each group
# The phases of a micro-batch in Spark. `handling` is the work on the executors; the others run on the driver.
BATCH_PHASES = ("asking_offsets", "planning", "logging_offsets", "handling", "logging_commit")

_larger = if_known(max)


@dataclass(frozen=True, slots=True)
class LastError:
    """An exception of a handler call."""

    at: float  # Unix seconds
    error: str  # the exception, usually its `repr`, cut to MAX_ERROR_CHARACTERS
    topic: str
    msg_id: str  # the batch's first message
    trace: tuple[str, ...] = ()  # last lines of the traceback; empty for a decision such as Retry


def _amount(name: str, help: str) -> Any:  # noqa: A002 as in Prometheus
    """Declare a gauge of a queue whose values are summed over processes and over the queues of a topic."""
    return gauge(name, help, operator.add, over_queues=operator.add, default=0)


def _newest(one: tuple[LastError, ...], other: tuple[LastError, ...]) -> tuple[LastError, ...]:
    return tuple(sorted((*one, *other), key=lambda error: error.at)[-MAX_ERRORS:])


def _add_reasons(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    """Add two counts by reason. Only the most frequent reasons are kept; the rest counts as OTHER_REASONS."""
    total = add_each(one, other)
    rest = total.pop(OTHER_REASONS, 0)
    ordered = sorted(total, key=total.__getitem__, reverse=True)
    rest += sum(total[reason] for reason in ordered[MAX_REASONS:])
    kept = {reason: total[reason] for reason in ordered[:MAX_REASONS]}
    return kept | ({OTHER_REASONS: rest} if rest else {})


@dataclass(slots=True, eq=False)
class TopicCounters:
    """Counters of one subscribed topic; a retried message counts under its original topic with `is_retry`."""

    topic: str
    is_retry: bool
    variant: str = ""  # "canary" for the messages of a canary
    received: int = counter("rmqd_messages_received_total", "Messages pulled that passed the group's own tag check.")
    handled: dict[str, int] = counter(
        "rmqd_messages_handled_total",
        "Attempts to handle a message, by how they ended: acked, retried (sent back), dead_lettered, expired (sent "
        "back at the timeout), corrupt.",
        by="result",
        keys=HANDLED_RESULTS,
    )
    exceptions: dict[str, int] = counter(
        "rmqd_handler_exceptions_total",
        "Batches whose handler raised, by the exception's class; after 50 classes the rest is other.",
        by="exception",
    )
    deduplicated: int = figure(operator.add, is_counter=True, default=0)  # skipped by `message.once` or `deduplicate`
    invalid_payloads: int = counter(
        "rmqd_invalid_payloads_total",
        "Attempts with messages whose body is invalid for the typed handler; on_invalid decides about them.",
    )
    duplicates: dict[str, int] = counter(
        "rmqd_duplicates_total",
        "Messages handled here that a member of the group will handle again, by cause.",
        by="cause",
        keys=REPEAT_CAUSES,
        start=None,
    )
    flow_control: dict[str, int] = counter(
        "rmqd_flow_control_total",
        "Pulls delayed by a threshold (count, size, span) or a pause (paused).",
        by="reason",
        keys=FLOW_CONTROL_REASONS,
    )
    held_seconds: dict[str, float] = counter(
        "rmqd_flow_control_seconds_total",
        "How long queues were not pulled because of a threshold or a pause, summed over all queues.",
        by="reason",
        keys=FLOW_CONTROL_REASONS,
        start=0.0,
    )
    retries: dict[int, int] = counter(
        "rmqd_retries_total", "Messages sent back for a retry, by their delay level.", by="level"
    )
    dead_letters: dict[str, int] = counter(
        "rmqd_dlq_total",
        "Messages dead-lettered: by the handler, at the limit of attempts, by delay level -1, or because they are "
        "corrupt.",
        by="reason",
        keys=DEAD_LETTER_CAUSES,
    )
    dead_letter_reasons: dict[str, int] = figure(_add_reasons, is_counter=True, default_factory=dict)
    """The number of dead letters by reason: at most MAX_REASONS reasons, and OTHER_REASONS."""
    lost: int = counter(
        "rmqd_messages_lost_total",
        "Messages that brokers had deleted before they were pulled, skipped by on_offset_illegal: correct.",
    )
    falls: dict[str, int] = counter(
        "rmqd_offset_falls_total",
        "Times that a queue's offset fell below the last commit of this member: after an operator's reset, a "
        "correction by the broker, or a lower offset at a take_over.",
        by="cause",
        keys=FALL_CAUSES,
    )


@dataclass(slots=True, kw_only=True)
class TopicSnapshot(TopicCounters):
    """The counters of one subscribed topic at one moment."""

    handler_duration: HistogramSnapshot = histogram(
        "rmqd_handler_duration_seconds", "How long the handler took for one batch."
    )
    message_age: HistogramSnapshot = histogram("rmqd_message_age_seconds", "From stored on the broker to handled.")
    errors: tuple[LastError, ...] = figure(_newest, is_counter=True, default=())
    """The last errors, at most MAX_ERRORS, the newest at the end."""


def merge_topics(these: tuple[TopicSnapshot, ...], those: tuple[TopicSnapshot, ...]) -> tuple[TopicSnapshot, ...]:
    """Merge the topics of two snapshots. If both contain a topic, its counters are added."""
    topics = {(topic.topic, topic.is_retry, topic.variant): topic for topic in these}
    for topic in those:
        key = (topic.topic, topic.is_retry, topic.variant)
        topics[key] = merge_two(topics[key], topic) if key in topics else topic
    return tuple(topics.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """One owned queue. Times are Unix seconds. A value is None while it is not known yet."""

    topic: str
    is_retry: bool
    broker: str
    queue: int
    state: str = gauge(
        "rmqd_queue_state",
        "1 for the queue's current state of stuck, paused, locked_out, flow_controlled, retrying, handling, pulling, "
        "waiting; of a topic, the number of its queues in each state. Other states have no series.",
        by="state",
        read=lambda queue: {queue.state: 1},
        over_queues=add_each,
    )
    since: float  # when the queue entered its state
    committed: int | None = gauge("rmqd_offset_committed", "The offset last committed to the broker.", default=None)
    position: int | None = gauge("rmqd_offset_position", "The next offset to pull.", default=None)
    max: int | None = gauge("rmqd_offset_max", "The broker's max offset in the last pull response.", default=None)
    lag: int | None = gauge(
        "rmqd_consumer_lag_messages",
        "Messages above the committed offset on the broker.",
        _larger,
        over_queues=operator.add,
        worst="rmqd_worst_queue_lag_messages",
        default=None,
    )
    lag_seconds: float | None = gauge(
        "rmqd_consumer_lag_seconds",
        "Age of the oldest uncommitted message; 0 if no message waits.",
        _larger,
        over_queues=_larger,
        worst="rmqd_worst_queue_lag_seconds",
        default=None,
    )
    cached: int = _amount("rmqd_cached_messages", "Messages pulled and not finished, including those being handled.")
    cached_bytes: int = _amount("rmqd_cached_bytes", "Bytes kept alive by cached messages, with their whole frames.")
    handling: int = _amount("rmqd_inflight_messages", "Messages that are being handled or settled.")
    span: int = gauge(
        "rmqd_queue_span_messages",
        "Offsets between the oldest and the newest unfinished message.",
        over_queues=_larger,
        default=0,
    )
    last_commit: float | None = gauge(
        "rmqd_last_commit_timestamp_seconds",
        "When an offset was last committed, in Unix seconds.",
        over_queues=_larger,
        default=None,
    )
    stall: Problem | None = figure(if_known(lambda one, _: one), default=None)
    """Why the queue makes no progress while messages wait; None if it is not stalled."""
    pulled_from: str | None = None  # the broker address of the last pull
    at_slave: bool = gauge(
        "rmqd_queue_at_slave",
        "1 while the queue is pulled from a slave of its broker, else 0.",
        read=lambda queue: None if queue.pulled_from is None else queue.at_slave,
        over_queues=operator.add,
        default=False,
    )
    popped: bool = False  # whether members share the queue with POP; queue -1 then means any queue of the broker

    @property
    def queue_label(self) -> str:
        """The queue id as text for output and metric labels; `any` for -1."""
        return str(self.queue) if self.queue >= 0 else "any"


@dataclass(frozen=True, slots=True)
class BatchesSnapshot:
    """The micro-batches with messages of a group on Spark."""

    duration: HistogramSnapshot = histogram(
        "rmqd_spark_batch_duration_seconds",
        "engine: spark: how long a micro-batch with messages took, from its trigger to its commit.",
    )
    phase_seconds: dict[str, float] = counter(
        "rmqd_spark_batch_phase_seconds_total",
        "engine: spark: the time of micro-batches by phase: asking_offsets, planning, logging_offsets, handling (on "
        "the executors), logging_commit.",
        by="phase",
        keys=BATCH_PHASES,
        start=0.0,
    )
    last_end: float | None = figure(
        _larger,
        Metric(
            "rmqd_spark_last_batch_timestamp_seconds",
            "gauge",
            "engine: spark: when the last micro-batch with messages ended (Unix time).",
        ),
        is_counter=True,
        default=None,
    )
    lost: int = counter(
        "rmqd_spark_lost_messages_total",
        "engine: spark: messages that brokers had deleted before they were read, skipped by on_offset_illegal: "
        "correct.",
    )
    retired_queues: int = counter(
        "rmqd_spark_retired_queues_total",
        "engine: spark: queues that were missing for three days and were dropped from the checkpoint with their "
        "offset.",
    )
    late_rows: int = counter(
        "rmqd_spark_late_rows_total",
        "engine: spark: rows of a pipeline that arrived after its watermark and were dropped; at least as many "
        "messages.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """One consumer group in one process."""

    name: str
    engine: str
    message_model: str
    state: str = gauge(
        "rmqd_group_state",
        "1 for the group's current state of starting, running, draining, failed, stopped; 0 for the others.",
        by="state",
        keys=GROUP_STATES,
    )
    paused: bool = gauge(
        "rmqd_group_paused", "1 while the group is paused by an operator, else 0.", operator.or_, default=False
    )
    pauses: tuple[PauseScope, ...] = figure(unique_values, default=())
    client_id: str = ""
    failure: str | None = None
    ready: bool = figure(operator.and_)
    not_ready_reason: str | None = figure(if_known(lambda one, _: one))
    topics: tuple[TopicSnapshot, ...] = figure(
        merge_topics,
        Metric(
            "rmqd_deduplicated_total",
            "counter",
            "Messages acknowledged without effect, because an earlier attempt had handled them: message.once, "
            "deduplicate.",
            read=lambda group: sum(topic.deduplicated for topic in group.topics),
        ),
        is_counter=True,
    )
    queues: tuple[QueueSnapshot, ...] = figure(
        operator.add,
        Metric(
            "rmqd_stalled_queues",
            "gauge",
            "Owned queues that make no progress while messages wait, by cause.",
            ("cause",),
            STALL_CAUSES,
            lambda group: Counter(queue.stall.cause for queue in group.queues if queue.stall is not None),
        ),
        default=(),
    )
    assigned: dict[str, int] = gauge("rmqd_assigned_queues", "Queues that this daemon owns.", add_each, by="topic")
    problems: tuple[Problem, ...] = gauge(
        "rmqd_group_problems",
        "Problems of the group as a whole, such as members with different subscriptions, by cause.",
        unique_values,
        by="cause",
        keys=GROUP_CAUSES,
        read=lambda group: Counter(problem.cause for problem in group.problems),
        default=(),
    )
    rebalances: int = counter("rmqd_rebalances_total", "Rebalances that changed the owned queues.")
    handover_timeouts: int = counter(
        "rmqd_handover_timeouts_total",
        "Queues acquired before their previous owner had finished, because queue_handover_timeout had passed.",
    )
    commit_failures: int = counter(
        "rmqd_offset_commit_failures_total", "Failed commits of offsets; the next commit includes their offsets."
    )
    hook_failures: dict[str, int] = counter(
        "rmqd_hook_failures_total", "Calls of an installed hook that raised, by its name.", by="hook"
    )
    left_out_by_hooks: dict[str, int] = counter(
        "rmqd_hook_left_out_messages_total",
        "Messages that an installed hook skipped; they count as consumed.",
        by="hook",
    )
    handler_hung: bool = gauge(
        "rmqd_handler_hung",
        "1 if all calls that concurrency allows hang in their threads.",
        operator.or_,
        default=False,
    )
    batches: BatchesSnapshot | None = figure(if_known(merge_two), is_counter=True, default=None)
    """The micro-batches of a group on Spark; None on the local engine."""
    trace_records: dict[str, int] = counter(
        "rmqd_trace_records_total",
        "Records of message trace: sent, or dropped because too many waited (full) or because sending failed (failed).",
        by="outcome",
    )
    handler_processes: int | None = gauge(
        "rmqd_handler_processes",
        "Running worker processes of the handler; fewer than handler.processes while lost ones are replaced.",
        if_known(operator.add),
        default=None,
    )
    handler_processes_lost: dict[str, int] = counter(
        "rmqd_handler_processes_lost_total",
        "Worker processes of the handler that were replaced: died, hung (expired), memory (above its limit).",
        by="cause",
    )
    rates: dict[str, float] = figure(add_each, default_factory=lambda: dict.fromkeys(HANDLER_RATES, 0.0))
    """Rates per second over the last minute, for each name in HANDLER_RATES."""
    concurrency: int | None = gauge(
        "rmqd_handler_concurrency",
        "Calls of the handler that may run at once, over all workers; with concurrency: auto, the current value.",
        if_known(operator.add),
        default=None,
    )
    circuit: CircuitSnapshot | None = gauge(
        "rmqd_circuit_state",
        "With circuit_breaker: 0 while the handler is called (closed), 1 during one test call (half open), 2 while it "
        "is not called (open); of several workers the highest.",
        if_known(lambda one, other: max(one, other, key=lambda circuit: CIRCUIT_STATES.index(circuit.state))),
        read=lambda group: None if group.circuit is None else CIRCUIT_STATES.index(group.circuit.state),
        default=None,
    )
    canary: CanarySnapshot | None = figure(
        lambda one, other: merge_two(one, other) if one and other else one, is_counter=True, default=None
    )
    cluster: str | None = None  # the cluster's name in the configuration; None if unknown
    members: tuple[str, ...] = figure(lambda one, other: tuple(sorted({*one, *other})[:MAX_MEMBERS]), default=())
    """Client ids of all members in the brokers' last list, at most MAX_MEMBERS."""
    member_count: int = figure(max, default=0)
