"""The outcome of a range of a queue that an executor handled: the only row that its task returns. No I/O."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field

from rmqd.consumer.stats.snapshot import TopicSnapshot
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOutcome:
    """The messages of `queue` from offset `start` to before `end` are acknowledged, sent back or dead-lettered.

    A queue has several outcomes in one batch if its range was split.
    """

    queue: MessageQueue
    start: int
    end: int
    topics: tuple[TopicSnapshot, ...] = ()
    """The range's part of the group's counters."""
    reset_to: int | None = None
    """The offset at which the queue continues instead of `end`: an operator reset the group, or see `failure`."""
    failure: str = ""
    """Why the group cannot continue at `reset_to`: a corrupt message is there. Everything before it is handled."""
    lost: int = 0
    """Number of offsets in the range that the broker lost. `on_offset_illegal: correct` skips them."""
    hook_failures: dict[str, int] = field(default_factory=dict)
    """Failures during the range, by name of the hook."""
    left_out_by_hooks: dict[str, int] = field(default_factory=dict)
    """Messages skipped during the range, by name of the hook."""
    trace_records: dict[str, int] = field(default_factory=dict)
    """Message trace records during the range, by result."""
    host: str = ""
    """Host and process that handled the range: `host:pid`."""

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


OnBatch = Callable[[int, list[RangeOutcome]], None]
"""Called with a micro-batch's id and the outcomes of its ranges."""
