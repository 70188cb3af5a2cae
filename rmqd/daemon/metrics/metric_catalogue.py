"""Every metric that the daemon exports: name, kind, labels and meaning. docs/metrics.md has the same list.

Names end in their unit (seconds, bytes), or in `_total` if they only increase. Label values come from closed sets, from
the configuration or from the cluster's own names, never from messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

_GROUP = ("engine", "group")
_TOPIC = (*_GROUP, "topic", "is_retry")
_QUEUE = (*_TOPIC, "broker", "queue")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family: its name, type and help, and the labels of its series."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


BUILD_INFO = Metric(
    "rmqd_build_info", "gauge", ("version", "python"), "Always 1; the labels say which rmqd and which Python run."
)
CONFIG_INFO = Metric(
    "rmqd_config_info",
    "gauge",
    ("hash",),
    "Always 1; the label is a hash of the current configuration without its secrets.",
)
RELOAD_SUCCESSFUL = Metric(
    "rmqd_config_last_reload_successful",
    "gauge",
    (),
    "1 if the last load or reload of the configuration succeeded, else 0.",
)
RELOAD_SUCCESS_TIME = Metric(
    "rmqd_config_last_reload_success_timestamp_seconds",
    "gauge",
    (),
    "When a configuration was last applied (Unix time).",
)
GROUP_STATE = Metric(
    "rmqd_group_state",
    "gauge",
    (*_GROUP, "state"),
    "1 for the group's current state of starting, running, draining, failed, stopped; 0 for the others.",
)
GROUP_PAUSED = Metric("rmqd_group_paused", "gauge", _GROUP, "1 while the group is paused by an operator, else 0.")
CIRCUIT_STATE = Metric(
    "rmqd_circuit_state",
    "gauge",
    _GROUP,
    "With circuit_breaker: 0 while the handler is called (closed), 1 during one test call (half open), "
    "2 while it is not called (open); of several workers the highest.",
)
MESSAGES_RECEIVED = Metric(
    "rmqd_messages_received_total", "counter", _TOPIC, "Messages pulled that passed the group's own tag check."
)
MESSAGES_HANDLED = Metric(
    "rmqd_messages_handled_total",
    "counter",
    (*_TOPIC, "result"),
    "Attempts to handle a message, by how they ended: acked, retried (sent back), dead_lettered, expired (sent back at "
    "the timeout), corrupt.",
)
HANDLER_CONCURRENCY = Metric(
    "rmqd_handler_concurrency",
    "gauge",
    _GROUP,
    "Calls of the handler that may run at once, over all workers; with concurrency: auto, the current value.",
)
HANDLER_DURATION = Metric(
    "rmqd_handler_duration_seconds", "histogram", _TOPIC, "How long the handler took for one batch."
)
MESSAGE_AGE = Metric("rmqd_message_age_seconds", "histogram", _TOPIC, "From stored on the broker to handled.")
HANDLER_EXCEPTIONS = Metric(
    "rmqd_handler_exceptions_total",
    "counter",
    (*_TOPIC, "exception"),
    "Batches whose handler raised, by the exception's class; after 50 classes the rest is other.",
)
INVALID_PAYLOADS = Metric(
    "rmqd_invalid_payloads_total",
    "counter",
    _TOPIC,
    "Attempts with messages whose body is invalid for the typed handler; on_invalid decides about them.",
)
DEDUPLICATED = Metric(
    "rmqd_deduplicated_total",
    "counter",
    _GROUP,
    "Messages acknowledged without effect, because an earlier attempt had handled them: message.once, deduplicate.",
)
DUPLICATES = Metric(
    "rmqd_duplicates_total",
    "counter",
    (*_TOPIC, "cause"),
    "Messages handled here that a member of the group will handle again, by cause.",
)
FLOW_CONTROL = Metric(
    "rmqd_flow_control_total",
    "counter",
    (*_TOPIC, "reason"),
    "Pulls delayed by a threshold (count, size, span) or a pause (paused).",
)
FLOW_CONTROL_SECONDS = Metric(
    "rmqd_flow_control_seconds_total",
    "counter",
    (*_TOPIC, "reason"),
    "How long queues were not pulled because of a threshold or a pause, summed over all queues.",
)
RETRIES = Metric(
    "rmqd_retries_total",
    "counter",
    (*_TOPIC, "level"),
    "Messages sent back for a retry, by their delay level.",
)
DEAD_LETTERS = Metric(
    "rmqd_dlq_total",
    "counter",
    (*_TOPIC, "reason"),
    "Messages dead-lettered: by the handler, at the limit of attempts, by delay level -1, or because they are corrupt.",
)
INFLIGHT_MESSAGES = Metric("rmqd_inflight_messages", "gauge", _QUEUE, "Messages that are being handled or settled.")
MESSAGES_LOST = Metric(
    "rmqd_messages_lost_total",
    "counter",
    _TOPIC,
    "Messages that brokers had deleted before they were pulled, skipped by on_offset_illegal: correct.",
)
OFFSET_FALLS = Metric(
    "rmqd_offset_falls_total",
    "counter",
    (*_TOPIC, "cause"),
    "Times that a queue's offset fell below the last commit of this member: after an operator's reset, a correction by "
    "the broker, or a lower offset at a take_over.",
)
STALLED_QUEUES = Metric(
    "rmqd_stalled_queues",
    "gauge",
    (*_GROUP, "cause"),
    "Owned queues that make no progress while messages wait, by cause.",
)
GROUP_PROBLEMS = Metric(
    "rmqd_group_problems",
    "gauge",
    (*_GROUP, "cause"),
    "Problems of the group as a whole, such as members with different subscriptions, by cause.",
)
CACHED_MESSAGES = Metric(
    "rmqd_cached_messages", "gauge", _QUEUE, "Messages pulled and not finished, including those being handled."
)
CACHED_BYTES = Metric(
    "rmqd_cached_bytes", "gauge", _QUEUE, "Bytes kept alive by cached messages, including their whole frames."
)
QUEUE_SPAN = Metric(
    "rmqd_queue_span_messages", "gauge", _QUEUE, "Offsets between the oldest and the newest unfinished message."
)
LAG_MESSAGES = Metric(
    "rmqd_consumer_lag_messages", "gauge", _QUEUE, "Messages above the committed offset on the broker."
)
LAG_SECONDS = Metric(
    "rmqd_consumer_lag_seconds", "gauge", _QUEUE, "Age of the oldest uncommitted message; 0 if no message waits."
)
OFFSET_COMMITTED = Metric("rmqd_offset_committed", "gauge", _QUEUE, "The offset last committed to the broker.")
OFFSET_POSITION = Metric("rmqd_offset_position", "gauge", _QUEUE, "The next offset to pull.")
OFFSET_MAX = Metric("rmqd_offset_max", "gauge", _QUEUE, "The broker's max offset in the last pull response.")
LAST_COMMIT = Metric(
    "rmqd_last_commit_timestamp_seconds", "gauge", _QUEUE, "When an offset was last committed, in Unix seconds."
)
QUEUE_STATE = Metric(
    "rmqd_queue_state",
    "gauge",
    (*_QUEUE, "state"),
    "1 for the queue's current state of stuck, paused, locked_out, flow_controlled, retrying, handling, pulling, "
    "waiting; 0 for the others.",
)
QUEUE_AT_SLAVE = Metric(
    "rmqd_queue_at_slave", "gauge", _QUEUE, "1 while the queue is pulled from a slave of its broker, else 0."
)
ASSIGNED_QUEUES = Metric("rmqd_assigned_queues", "gauge", (*_GROUP, "topic"), "Queues that this daemon owns.")
REBALANCES = Metric("rmqd_rebalances_total", "counter", _GROUP, "Rebalances that changed the owned queues.")
HANDOVER_TIMEOUTS = Metric(
    "rmqd_handover_timeouts_total",
    "counter",
    _GROUP,
    "Queues acquired before their previous owner had finished, because queue_handover_timeout had passed.",
)
COMMIT_FAILURES = Metric(
    "rmqd_offset_commit_failures_total",
    "counter",
    _GROUP,
    "Failed commits of offsets; the next commit includes their offsets.",
)
HANDLER_HUNG = Metric(
    "rmqd_handler_hung", "gauge", _GROUP, "1 if all calls that concurrency allows hang in their threads."
)
HANDLER_PROCESSES = Metric(
    "rmqd_handler_processes",
    "gauge",
    _GROUP,
    "Running worker processes of the handler; fewer than handler.processes while lost ones are replaced.",
)
HANDLER_PROCESSES_LOST = Metric(
    "rmqd_handler_processes_lost_total",
    "counter",
    (*_GROUP, "cause"),
    "Worker processes of the handler that were replaced: died, hung (expired), memory (above its limit).",
)
HOOK_FAILURES = Metric(
    "rmqd_hook_failures_total", "counter", (*_GROUP, "hook"), "Calls of an installed hook that raised, by its name."
)
HOOK_LEFT_OUT = Metric(
    "rmqd_hook_left_out_messages_total",
    "counter",
    (*_GROUP, "hook"),
    "Messages that an installed hook skipped; they count as consumed.",
)
TRACE_RECORDS = Metric(
    "rmqd_trace_records_total",
    "counter",
    (*_GROUP, "result"),
    "Records of message trace: sent, or dropped because too many waited (full) or because sending failed (failed).",
)
BATCH_DURATION = Metric(
    "rmqd_spark_batch_duration_seconds",
    "histogram",
    _GROUP,
    "engine: spark: how long a micro-batch with messages took, from its trigger to its commit.",
)
BATCH_PHASE_SECONDS = Metric(
    "rmqd_spark_batch_phase_seconds_total",
    "counter",
    (*_GROUP, "phase"),
    "engine: spark: the time of micro-batches by phase: asking_offsets, planning, logging_offsets, handling (on the "
    "executors), logging_commit.",
)
LAST_BATCH = Metric(
    "rmqd_spark_last_batch_timestamp_seconds",
    "gauge",
    _GROUP,
    "engine: spark: when the last micro-batch with messages ended (Unix time).",
)
LOST_MESSAGES = Metric(
    "rmqd_spark_lost_messages_total",
    "counter",
    _GROUP,
    "engine: spark: messages that brokers had deleted before they were read, skipped by on_offset_illegal: correct.",
)
RETIRED_QUEUES = Metric(
    "rmqd_spark_retired_queues_total",
    "counter",
    _GROUP,
    "engine: spark: queues that were missing for three days and were dropped from the checkpoint with their offset.",
)
LATE_ROWS = Metric(
    "rmqd_spark_late_rows_total",
    "counter",
    _GROUP,
    "engine: spark: rows of a pipeline that arrived after its watermark and were dropped; at least as many messages.",
)
REQUEST_DURATION = Metric(
    "rmqd_broker_request_duration_seconds",
    "histogram",
    ("code",),
    "Time from a request to its response, by request code.",
)
REQUEST_FAILURES = Metric(
    "rmqd_broker_request_failures_total", "counter", ("code", "reason"), "Requests without a response, by reason."
)
BROKER_UP = Metric(
    "rmqd_broker_up",
    "gauge",
    ("broker",),
    "1 if the broker (host:port) responded to the last heartbeat and to later requests; 0 while its circuit is open.",
)
CORRUPT_FRAMES = Metric(
    "rmqd_corrupt_frames_total", "counter", (), "Frames that could not be decoded; each one closed its connection."
)
DOUBTED_REPLIES = Metric(
    "rmqd_doubted_replies_total",
    "counter",
    (),
    "Pull responses that contradict themselves or the request, or have a corrupt message; pulled again from there.",
)
LOOP_DELAY = Metric(
    "rmqd_event_loop_lag_seconds", "histogram", (), "How late the event loop ran a timer, measured once a second."
)
LOG_DROPPED = Metric(
    "rmqd_log_dropped_total",
    "counter",
    (),
    "Log lines that were dropped, because the log is not read or the rate limit was exceeded.",
)
WORKERS = Metric(
    "rmqd_workers", "gauge", ("state",), "Worker processes by state: running, restarting. Absent without --workers."
)
WORKER_UP = Metric(
    "rmqd_worker_up", "gauge", ("worker",), "1 if a worker responds; 0 if not, and its other values are old."
)
WORKER_RESTARTS = Metric("rmqd_worker_restarts_total", "counter", (), "Workers replaced because they had died.")

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
