"""Snapshots of a consumer group: plain picklable values for metrics and the status page.

A snapshot is taken at one moment of the event loop, so its values are consistent. Counters never decrease during the
life of one consumer. A caller that keeps a group over several consumers (a restart, a lost worker) adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqd.consumer.circuit import CircuitSnapshot
from rmqd.consumer.health.causes import Problem
from rmqd.consumer.pauses import PauseScope
from rmqd.runtime.histogram import HistogramSnapshot

HANDLED_RESULTS = ("acked", "retried", "dead_lettered", "expired", "corrupt")
FLOW_CONTROL_REASONS = ("count", "size", "span", "paused")
# Causes of a dead letter: the handler's decision, used-up attempts, delay level -1, a corrupt message.
DEAD_LETTER_CAUSES = ("handler", "limit", "level", "corrupt")
# Causes of an offset that fell below the committed one: an operator's reset, a correction by the broker
# (`on_offset_illegal`), an acquisition with a lower stored offset.
FALL_CAUSES = ("operator", "corrected", "take_over")
# A queue's state is the first that applies.
QUEUE_STATES = ("stuck", "paused", "locked_out", "flow_controlled", "retrying", "handling", "pulling", "waiting")
GROUP_STATES = ("starting", "running", "draining", "failed", "stopped")
MOST_ERROR_CHARACTERS = 500
MOST_ERRORS = 5  # newest errors for each topic
MOST_TRACE_LINES = 6
MOST_REASONS = 20  # dead-letter reasons for each topic; others count as OTHER_REASONS
MOST_REASON_CHARACTERS = 200
OTHER_REASONS = "other reasons"
MOST_MEMBERS = 200  # named members for each group
# The phases of a micro-batch in Spark. `handling` is the work on the executors; the others run on the driver.
BATCH_PHASES = ("asking_offsets", "planning", "logging_offsets", "handling", "logging_commit")


@dataclass(frozen=True, slots=True)
class LastError:
    """An exception of a handler call."""

    at: float  # Unix seconds
    error: str  # in Python's format, cut to MOST_ERROR_CHARACTERS
    topic: str
    msg_id: str  # the batch's first message
    trace: tuple[str, ...] = ()  # last lines of the traceback; empty for a decision such as Retry


@dataclass(frozen=True, slots=True)
class HandlerRates:
    """Recent results of messages, per second."""

    handled: float = 0.0  # attempts with any result
    failed: float = 0.0  # handler calls that raised or expired
    retried: float = 0.0  # attempts that end in a retry
    dead_lettered: float = 0.0


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """Counters of one subscribed topic; a retried message counts under its original topic with `is_retry`."""

    topic: str
    is_retry: bool
    received: int
    handled: dict[str, int]  # attempts by HANDLED_RESULTS
    flow_control: dict[str, int]  # keys: FLOW_CONTROL_REASONS
    held_seconds: dict[str, float]  # keys: FLOW_CONTROL_REASONS; sum over all queues
    retries: dict[int, int]  # keys: delay levels
    dead_letters: dict[str, int]  # keys: DEAD_LETTER_CAUSES
    falls: dict[str, int]  # keys: FALL_CAUSES
    handler_duration: HistogramSnapshot  # seconds
    message_age: HistogramSnapshot  # seconds from stored to handled
    duplicates: dict[str, int]  # keys: causes
    exceptions: dict[str, int]  # keys: class names
    errors: tuple[LastError, ...] = ()  # at most MOST_ERRORS, the newest at the end
    dead_letter_reasons: dict[str, int] = field(default_factory=dict)  # at most MOST_REASONS, and OTHER_REASONS
    lost: int = 0  # messages that brokers deleted before they were pulled
    deduplicated: int = 0  # messages with a record of an earlier success, by `message.once` or `deduplicate`
    invalid_payloads: int = 0  # attempts with a body that the typed handler does not accept

    @property
    def last_error(self) -> LastError | None:
        return self.errors[-1] if self.errors else None


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One owned queue. Times are Unix seconds; None means not known yet."""

    topic: str
    is_retry: bool
    broker: str
    queue: int
    state: str  # one of QUEUE_STATES
    since: float
    committed: int | None = None
    max: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    cached: int = 0  # messages, including those in flight
    handling: int = 0  # cached messages that are in flight or being settled
    cached_bytes: int = 0  # whole frames, not only bodies
    span: int = 0  # greatest minus smallest cached offset
    position: int | None = None  # the next offset to pull
    last_commit: float | None = None
    stall: Problem | None = None  # why it makes no progress while messages wait
    pulled_from: str | None = None  # the address of the last pull
    at_slave: bool = False  # whether that address is a slave
    popped: bool = False  # whether members share the queue; number -1 means any queue of the broker

    @property
    def number(self) -> str:
        """The queue's number for output and labels."""
        return str(self.queue) if self.queue >= 0 else "any"


@dataclass(frozen=True, slots=True)
class BatchesSnapshot:
    """The micro-batches with messages of a group on Spark."""

    duration: HistogramSnapshot  # seconds, from its trigger to its commit
    phase_seconds: dict[str, float]  # keys: BATCH_PHASES
    last_end: float | None  # Unix seconds
    lost: int  # messages that brokers had deleted before they were read
    retired_queues: int  # queues that were gone for the retention time, and left the checkpoint
    late_rows: int = 0  # rows that Spark dropped, because they were behind the watermark


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One consumer group in one process."""

    name: str
    engine: str
    message_model: str
    state: str  # one of GROUP_STATES
    paused: bool  # whether the whole group is paused
    pauses: tuple[PauseScope, ...]
    client_id: str
    failure: str | None
    ready: bool
    not_ready_reason: str | None
    topics: tuple[TopicSnapshot, ...]
    queues: tuple[QueueSnapshot, ...]
    assigned: dict[str, int]  # topic -> owned queues
    rebalances: int
    handover_timeouts: int
    commit_failures: int
    hook_failures: dict[str, int]  # keys: hook names
    left_out_by_hooks: dict[str, int]  # messages that a hook rejected, by hook name
    handler_hung: bool
    problems: tuple[Problem, ...]  # problems of the whole group
    batches: BatchesSnapshot | None = None  # only on Spark
    trace_records: dict[str, int] = field(default_factory=dict)  # keys: results; empty without message trace
    handler_processes: int | None = None  # running processes; None without handler.processes
    handler_processes_lost: dict[str, int] = field(default_factory=dict)  # keys: LOSS_CAUSES
    rates: HandlerRates = HandlerRates()
    concurrency: int | None = None  # current limit of concurrent handler calls; None on Spark
    circuit: CircuitSnapshot | None = None  # None without a circuit breaker
    cluster: str | None = None  # name in the configuration; None for a consumer, which does not know it
    members: tuple[str, ...] = ()  # client ids of all members in the brokers' last list, at most MOST_MEMBERS
    member_count: int = 0
