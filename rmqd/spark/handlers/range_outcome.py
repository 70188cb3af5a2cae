"""The outcome of a queue range that a Spark task handled, and the sizes of micro-batches. No I/O.

A micro-batch should last a few seconds. Short batches are better for a stop, which waits for the current batch, and
after a crash, when the last batch is repeated. Long batches increase throughput, because Spark needs about 200 ms for
each batch, and 2 s on a busy machine.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rmqd.consumer.stats.stats_snapshot import TopicSnapshot
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOutcome:
    """The outcome of a queue range, after its messages from offset `start` to before `end` are settled.

    A queue has several outcomes in one micro-batch if its range was split.
    """

    queue: MessageQueue
    start: int
    end: int
    topic_counters: tuple[TopicSnapshot, ...] = ()
    """The range's share of the group's counters."""
    reset_to: int | None = None
    """The offset at which the queue continues after an operator's reset or a corrupt message; None: at `end`."""
    stop_reason: str = ""
    """Why the group must stop: the message at `reset_to` is corrupt. Empty if the group need not stop."""
    lost_messages: int = 0
    """The number of messages that the broker lost. They are skipped because of `on_offset_illegal: correct`."""
    hook_failures: dict[str, int] = field(default_factory=dict)
    """The number of hook failures while the range was handled, by name of the hook."""
    skipped_by_hooks: dict[str, int] = field(default_factory=dict)
    """The number of messages that hooks skipped, by name of the hook."""
    trace_records: dict[str, int] = field(default_factory=dict)
    """The number of message trace records, by result."""

    def encode(self) -> bytes:
        """Pickle the outcome for `decode` in a process with the same version of rmqd."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def decode(data: bytes | bytearray) -> RangeOutcome:
        """Unpickle the outcome that `encode` returned. Raises RmqdError for other data."""
        try:
            value = pickle.loads(data)
        except Exception as error:
            raise RmqdError(
                f"unreadable result of a Spark task: {error}; check that executors run the driver's version of rmqd"
            ) from error
        if not isinstance(value, RangeOutcome):
            raise RmqdError(
                f"an executor returned a {type(value).__name__}; expected the result of a task; "
                "check that it runs the driver's version of rmqd"
            )
        return value


OnBatch = Callable[[list[RangeOutcome]], None]
"""A callback for the outcomes of all ranges of a micro-batch."""


TARGET_BATCH_SECONDS: Final = 2.0
MAX_GROWTH_FACTOR: Final = 8
LATE_BATCH_FACTOR: Final = 2  # a batch is late if it takes more than this many times the target duration
MAX_GROWTH_FACTOR_AFTER_LATE_BATCH: Final = 2  # limit of growth after a batch that was late for an unknown reason
MAX_BATCH_MESSAGES: Final = 10_000_000
_MEMORY: Final = 0.6  # weight of a batch relative to the batch after it
_MIN_SPREAD: Final = 0.05  # relative spread of batch sizes needed to separate the costs per batch and per message


class BatchSizer:
    """Chooses the sizes of micro-batches from the durations of earlier ones. `now` is a monotonic time in seconds."""

    def __init__(
        self,
        min_messages: int,
        *,
        fixed_messages: int = 0,
        max_messages_per_second: int = 0,
        target_seconds: float = TARGET_BATCH_SECONDS,
    ) -> None:
        """If `fixed_messages` is not 0, each batch has this size.

        Otherwise a batch has as many messages as take `target_seconds`, and at least `min_messages`. In both cases
        `max_messages_per_second` limits the size; 0 means no limit.
        """
        self._least = min_messages
        self._size = fixed_messages or min_messages
        self._is_fixed = bool(fixed_messages)
        self._target = target_seconds
        self._per_second = max_messages_per_second
        self._allowed = float(max_messages_per_second)
        self._counted_at: float | None = None
        self._began: tuple[int, float] | None = None
        self._costs = _Costs()
        self._halves = False

    def next_size(self, now: float) -> int:
        """Return the maximum number of messages of the next batch; 0 if the rate limit allows none now."""
        if not self._per_second:
            return self._size
        if self._counted_at is not None:
            # limited to the messages of one target duration, so that idle time does not permit a burst
            most = max(1.0, self._per_second * self._target)
            self._allowed = min(most, self._allowed + (now - self._counted_at) * self._per_second)
        self._counted_at = now
        return min(self._size, int(self._allowed)) if self._allowed >= 1 else 0

    def batch_started(self, messages: int, now: float) -> None:
        self._allowed -= messages
        self._began = messages, now

    def batch_ended(self, now: float, seconds: float | None = None) -> None:
        """Called when the current batch has ended. `seconds` is its duration; if None, the time since its start."""
        if self._began is None:
            return
        count, began_at = self._began
        self._began = None
        if seconds is None:
            seconds = now - began_at
        is_late = seconds > LATE_BATCH_FACTOR * self._target
        # a late first batch does not count, because its duration includes the start of worker processes
        if self._is_fixed or not count or (is_late and self._costs.is_new):
            self._costs.is_new = False
            return
        self._costs.learn(count, seconds)
        fits = self._costs.messages_in(self._target)
        if fits < self._size or (is_late and self._costs.own_seconds is not None):
            # after late batches, alternate between two sizes, because batches of one size do not separate the costs
            self._halves = is_late and not self._halves
            if is_late or seconds > self._target:
                self._size = max(
                    self._least,
                    min(fits, self._size * MAX_GROWTH_FACTOR_AFTER_LATE_BATCH) // (2 if self._halves else 1),
                )
        elif count >= self._size:
            self._size = min(
                fits,
                self._size * (MAX_GROWTH_FACTOR_AFTER_LATE_BATCH if is_late else MAX_GROWTH_FACTOR),
                MAX_BATCH_MESSAGES,
            )


class _Costs:
    """Divides the duration of batches into a fixed cost for each batch, and a cost for each message.

    The costs are fitted to the durations of the last batches by least squares; older batches have lower weights. If all
    batches have about the same size, the costs cannot be separated, and the last known fixed cost is kept.
    """

    def __init__(self) -> None:
        self.is_new = True
        self.own_seconds: float | None = None
        """The fixed cost of a batch in seconds; None until it was separated from the cost of the messages."""
        self._weight = self._n = self._t = self._nn = self._nt = 0.0

    def learn(self, count: int, seconds: float) -> None:
        self.is_new = False
        self._weight = self._weight * _MEMORY + 1
        self._n = self._n * _MEMORY + count
        self._t = self._t * _MEMORY + seconds
        self._nn = self._nn * _MEMORY + count * count
        self._nt = self._nt * _MEMORY + count * seconds
        n, t = self._n / self._weight, self._t / self._weight
        variance = self._nn / self._weight - n * n
        if variance > (_MIN_SPREAD * n) ** 2:
            each = max(0.0, (self._nt / self._weight - n * t) / variance)
            self.own_seconds = max(0.0, t - each * n)

    def messages_in(self, seconds: float) -> int:
        """Return how many messages a batch of this duration should have, from 1 to MAX_BATCH_MESSAGES."""
        n, t = self._n / self._weight, self._t / self._weight
        # until the two costs are separated, the whole duration counts as fixed cost
        each = 0.0 if self.own_seconds is None else max(0.0, t - self.own_seconds) / n
        return MAX_BATCH_MESSAGES if each * MAX_BATCH_MESSAGES <= seconds else max(1, int(seconds / each))
