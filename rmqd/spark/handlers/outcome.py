"""The outcome of a range of a queue that an executor handled: the only row that its task gives to the driver. Pure."""

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

    A queue may have several in one batch, where its range was cut into pieces.
    """

    queue: MessageQueue
    start: int
    end: int
    topics: tuple[TopicSnapshot, ...] = ()
    """The range's part of the group's counters."""
    reset_to: int | None = None
    """The offset at which the queue goes on instead of `end`: an operator reset the group, or see `failure`."""
    failure: str = ""
    """Why the group cannot go on at `reset_to`: a corrupt message is there. Everything before it is handled."""
    lost: int = 0
    """How many offsets of the range the broker has lost. They are left out by `on_offset_illegal: correct`."""
    hook_failures: dict[str, int] = field(default_factory=dict)
    """By the hook's name; what the range adds."""
    left_out_by_hooks: dict[str, int] = field(default_factory=dict)
    """Messages, by the name of the hook that did not want them; what the range adds."""
    trace_records: dict[str, int] = field(default_factory=dict)
    """Records of message trace by what became of them, while the range was handled."""
    host: str = ""
    """Where it was handled, and by which process: `host:pid`."""

    def encode(self) -> bytes:
        """What `decode` reads, in another process of the same rmqd."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def decode(data: bytes | bytearray) -> RangeOutcome:
        """Read what `encode` wrote. Raises RmqdError for anything else."""
        try:
            value = pickle.loads(data)
        except Exception as error:
            raise RmqdError(f"an executor's outcome cannot be read; has it another rmqd? {error}") from error
        if not isinstance(value, RangeOutcome):
            raise RmqdError(f"an executor gave a {type(value).__name__}, and no outcome; has it another rmqd?")
        return value


OnBatch = Callable[[int, list[RangeOutcome]], None]
"""Called with a micro-batch's id and what became of its ranges."""
