"""What a consumer group tells about itself: plain values that pickle, rendered as metrics and as the status page.

A snapshot is taken whole at one moment of the event loop, so its numbers belong together. Counters only ever grow
during the life of one consumer; whoever keeps a group over several consumers (a restart, a dead worker) adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqd.consumer.circuit import CircuitSnapshot
from rmqd.consumer.pauses import PauseScope
from rmqd.diagnosis.causes import Problem
from rmqd.histogram import HistogramSnapshot

HANDLED_RESULTS = ("acked", "retried", "dead_lettered", "expired", "corrupt")
FLOW_CONTROL_REASONS = ("count", "size", "span", "paused")
# Why a message was given up: the handler said so, it had all its attempts, its delay level was -1, it was corrupt.
DEAD_LETTER_CAUSES = ("handler", "limit", "level", "corrupt")
# Why a queue's offset fell below what this process had committed: an operator's reset, a correction at the broker's
# word (`on_offset_illegal`), a take-over at what the broker had stored.
FALL_CAUSES = ("operator", "corrected", "take_over")
# The first that applies is a queue's state.
QUEUE_STATES = ("stuck", "paused", "locked_out", "flow_controlled", "retrying", "handling", "pulling", "waiting")
GROUP_STATES = ("starting", "running", "draining", "failed", "stopped")
MOST_ERROR_CHARACTERS = 500
MOST_ERRORS = 5  # of a topic, the newest
MOST_TRACE_LINES = 6
MOST_REASONS = 20  # of a topic, by which dead letters are counted; the rest counts as OTHER_REASONS
MOST_REASON_CHARACTERS = 200
OTHER_REASONS = "other reasons"
MOST_MEMBERS = 200  # of a group, that are named
# What Spark does in a micro-batch: `handling` is the whole of the work on executors, the others are the driver's.
BATCH_PHASES = ("asking_offsets", "planning", "logging_offsets", "handling", "logging_commit")


@dataclass(frozen=True, slots=True)
class LastError:
    """What a call of the handler raised."""

    at: float  # Unix seconds
    error: str  # as Python shows it, cut to MOST_ERROR_CHARACTERS
    topic: str
    msg_id: str  # of the batch's first message
    trace: tuple[
        str, ...
    ] = ()  # the last lines of its traceback; none where the handler declined by Retry and the like


@dataclass(frozen=True, slots=True)
class HandlerRates:
    """What became of messages lately, per second."""

    handled: float = 0.0  # attempts, whatever came of them
    failed: float = 0.0  # calls of the handler that raised, or ran into their deadline
    retried: float = 0.0  # attempts after which the message is to come again
    dead_lettered: float = 0.0


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """Counters of one subscribed topic; a retried message counts under its original topic with `is_retry`."""

    topic: str
    is_retry: bool
    received: int
    handled: dict[str, int]  # by HANDLED_RESULTS, each attempt once
    flow_control: dict[str, int]  # by FLOW_CONTROL_REASONS
    held_seconds: dict[str, float]  # by FLOW_CONTROL_REASONS, over all queues
    retries: dict[int, int]  # by delay level
    dead_letters: dict[str, int]  # by DEAD_LETTER_CAUSES
    falls: dict[str, int]  # by FALL_CAUSES
    handler_duration: HistogramSnapshot  # seconds
    message_age: HistogramSnapshot  # seconds from stored to handled
    duplicates: dict[str, int]  # by cause
    exceptions: dict[str, int]  # by class name
    errors: tuple[LastError, ...] = ()  # the newest, at most MOST_ERRORS, the last one at the end
    dead_letter_reasons: dict[str, int] = field(default_factory=dict)  # at most MOST_REASONS, and OTHER_REASONS
    lost: int = 0  # messages that brokers had deleted before they were pulled
    deduplicated: int = 0  # messages that were handled before, by the mark of `message.once`, or by `deduplicate`
    invalid_payloads: int = 0  # attempts at messages whose body the typed handler does not take

    @property
    def last_error(self) -> LastError | None:
        """The newest error."""
        return self.errors[-1] if self.errors else None


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One owned queue. Times are Unix seconds; None means not known yet."""

    topic: str
    is_retry: bool
    broker: str
    queue: int
    state: str  # of QUEUE_STATES
    since: float
    committed: int | None = None
    max: int | None = None
    lag: int | None = None
    lag_seconds: float | None = None
    cached: int = 0  # messages, those being handled included
    handling: int = 0  # of the cached ones, those that a handler has or whose outcome is being settled
    cached_bytes: int = 0  # frames kept alive, not only bodies
    span: int = 0  # greatest minus smallest cached offset
    position: int | None = None  # the next offset to pull
    last_commit: float | None = None
    stall: Problem | None = None  # why it makes no progress while messages wait
    pulled_from: str | None = None  # the address that was asked last
    at_slave: bool = False  # that was not the broker's master
    popped: bool = False  # other members pop it at the same time; the number is -1 where it is any queue of the broker

    @property
    def number(self) -> str:
        """The queue's number as people and labels have it."""
        return str(self.queue) if self.queue >= 0 else "any"


@dataclass(frozen=True, slots=True)
class BatchesSnapshot:
    """The micro-batches of a group on Spark, those that had messages."""

    duration: HistogramSnapshot  # seconds, from its trigger to its commit
    phase_seconds: dict[str, float]  # by BATCH_PHASES
    last_end: float | None  # Unix seconds
    lost: int  # messages that brokers held no more when they were to be read
    retired_queues: int  # gone for the retention, and dropped from the checkpoint
    late_rows: int = 0  # behind the watermark, and dropped; sums of several where Spark had added them up


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """One consumer group in one process."""

    name: str
    engine: str
    message_model: str
    state: str  # of GROUP_STATES
    paused: bool  # the whole of it
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
    hook_failures: dict[str, int]  # by the hook's name
    left_out_by_hooks: dict[str, int]  # messages, by the name of the hook that did not want them
    handler_hung: bool
    problems: tuple[Problem, ...]  # of the group as a whole
    batches: BatchesSnapshot | None = None  # None but on Spark
    trace_records: dict[str, int] = field(default_factory=dict)  # by what became of them; empty without message trace
    handler_processes: int | None = None  # that run; None without handler.processes
    handler_processes_lost: dict[str, int] = field(default_factory=dict)  # by LOSS_CAUSES; empty without them
    rates: HandlerRates = HandlerRates()
    concurrency: int | None = None  # calls of the handler that may run at once now; None on Spark
    circuit: CircuitSnapshot | None = None  # None without a circuit breaker
    cluster: str | None = None  # its name in the configuration; None for a consumer, which does not know it
    members: tuple[str, ...] = ()  # client ids of the group as brokers listed them last, this one's too; MOST_MEMBERS
    member_count: int = 0
