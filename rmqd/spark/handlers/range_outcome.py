"""The outcome of a range that an executor handled, its task's only row; and the sizes of micro-batches. No I/O.

A batch should last a few seconds, within the rate limit. Short batches are good for a stop, which waits for the current
batch, and for a crash, which repeats the last one. Long batches are good for throughput: Spark takes about 200 ms for
each, and 2 s on a busy machine.
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
    """The outcome of a range: its messages, from offset `start` to before `end`, are all settled.

    A queue has several outcomes in one batch if its range was split.
    """

    queue: MessageQueue
    start: int
    end: int
    topic_counters: tuple[TopicSnapshot, ...] = ()
    """The range's part of the group's counters."""
    reset_to: int | None = None
    """The offset at which the queue continues instead of `end`: an operator reset the group, or see `stop_reason`."""
    stop_reason: str = ""
    """Why the group cannot continue at `reset_to`: a corrupt message is there. Everything before it is handled."""
    lost_messages: int = 0
    """Number of offsets in the range that the broker lost. `on_offset_illegal: correct` skips them."""
    hook_failures: dict[str, int] = field(default_factory=dict)
    """Failures during the range, by name of the hook."""
    skipped_by_hooks: dict[str, int] = field(default_factory=dict)
    """Messages skipped during the range, by name of the hook."""
    trace_records: dict[str, int] = field(default_factory=dict)
    """Message trace records during the range, by result."""

    def encode(self) -> bytes:
        """Encode for `decode` in another process of the same rmqd."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def decode(data: bytes | bytearray) -> RangeOutcome:
        """Read the output of `encode`. Raises RmqdError for anything else."""
        try:
            value = pickle.loads(data)
        except Exception as error:
            raise RmqdError(
                f"unreadable outcome: {error}; check that executors run the same version of rmqd"
            ) from error
        if not isinstance(value, RangeOutcome):
            raise RmqdError(
                f"an executor returned a {type(value).__name__}; expected an outcome; "
                "check that it runs the same version of rmqd"
            )
        return value


OnBatch = Callable[[list[RangeOutcome]], None]
"""Called with the outcomes of a micro-batch's ranges."""


TARGET_BATCH_SECONDS: Final = 2.0
MAX_GROWTH_FACTOR: Final = 8
LATE_BATCH_FACTOR: Final = 2  # a batch is late if it takes this many times the target
MAX_GROWTH_FACTOR_AFTER_LATE_BATCH: Final = 2  # limit of growth after a batch that took too long for an unknown reason
MAX_BATCH_MESSAGES: Final = 10_000_000
_MEMORY: Final = 0.6  # weight of a batch relative to the next batch
_MIN_SPREAD: Final = 0.05  # relative spread of the sizes needed to separate the costs of messages and batches


class BatchSizer:
    """Sizes batches by the duration of the last ones. Times are monotonic, in seconds."""

    def __init__(
        self,
        min_messages: int,
        *,
        fixed_messages: int = 0,
        max_messages_per_second: int = 0,
        target_seconds: float = TARGET_BATCH_SECONDS,
    ) -> None:
        """A batch has `fixed_messages`. With 0 it has as many as take `target_seconds`, and at least `min_messages`.

        `max_messages_per_second` limits both; 0 means no limit.
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
        """Return the maximum size of the next batch; 0 if the rate limit is exhausted for now."""
        if not self._per_second:
            return self._size
        if self._counted_at is not None:
            # limited, so that idle time does not permit a burst
            most = max(1.0, self._per_second * self._target)
            self._allowed = min(most, self._allowed + (now - self._counted_at) * self._per_second)
        self._counted_at = now
        return min(self._size, int(self._allowed)) if self._allowed >= 1 else 0

    def batch_started(self, messages: int, now: float) -> None:
        self._allowed -= messages
        self._began = messages, now

    def batch_ended(self, now: float, seconds: float | None = None) -> None:
        """Called when the batch is done; `seconds` is its duration if known more precisely than by `now`."""
        if self._began is None:
            return
        count, began_at = self._began
        self._began = None
        if seconds is None:
            seconds = now - began_at
        is_late = seconds > LATE_BATCH_FACTOR * self._target
        # the first batch includes the start of processes
        if self._is_fixed or not count or (is_late and self._costs.is_new):
            self._costs.is_new = False
            return
        self._costs.learn(count, seconds)
        fits = self._costs.messages_in(self._target)
        if fits < self._size or (is_late and self._costs.own_seconds is not None):
            # after a late batch, every other batch has half the fitting size: the comparison shows the cause
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
    """Divides the duration of batches into a fixed part for each batch, and a part for each message.

    It fits a line through the last batches by least squares, with decreasing weights. While all batches have about the
    same size, the two parts cannot be separated, and the last known fixed part is kept.
    """

    def __init__(self) -> None:
        self.is_new = True
        self.own_seconds: float | None = None
        """The part per batch; None until the duration was split into this part and the part per message."""
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
        """Return how many messages are handled in `seconds`."""
        n, t = self._n / self._weight, self._t / self._weight
        # until the parts are separated, the whole duration counts as the fixed part
        each = 0.0 if self.own_seconds is None else max(0.0, t - self.own_seconds) / n
        return MAX_BATCH_MESSAGES if each * MAX_BATCH_MESSAGES <= seconds else max(1, int(seconds / each))
