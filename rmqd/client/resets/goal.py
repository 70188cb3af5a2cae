"""The destination of a reset, and its offset in one queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rmqd.wire.bodies.stats import TopicOffset
    from rmqd.wire.message_queue import MessageQueue

Search = Callable[["MessageQueue", int], Awaitable[int]]
"""Asks a broker for the first message stored at or after a time (Unix milliseconds)."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The destination of a reset.

    `number` is an offset for `offset`, Unix milliseconds for `time`, and a number of messages for `skip`. `offsets` are
    for `exact`, by broker and queue id; other queues stay.
    """

    kind: Literal["first", "last", "offset", "time", "skip", "exact"]
    number: int = 0
    offsets: Mapping[tuple[str, int], int] | None = None
    forward_only: bool = False
    """A queue at this offset or beyond it stays."""

    @property
    def timestamp_ms(self) -> int | None:
        """The time for brokers that reset only by time, -1 for the end; None if the goal is not a time."""
        return {"first": 0, "last": -1, "time": self.number}.get(self.kind)

    async def offset_in(
        self, queue: MessageQueue, ends: TopicOffset, committed: int | None, search: Search
    ) -> int | None:
        """Return the offset in a queue, not limited to its ends; None if the queue stays. Raises RmqdError."""
        match self.kind:
            case "first":
                return ends.min_offset
            case "last":
                return ends.max_offset
            case "offset":
                return self.number
            case "time":
                return await search(queue, self.number)
            case "skip":
                return (ends.min_offset if committed is None else committed) + self.number
            case "exact":
                return (self.offsets or {}).get((queue.broker_name, queue.queue_id))
