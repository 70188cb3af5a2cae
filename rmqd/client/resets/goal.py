"""Where a group is to be moved, and what that is in one queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rmqd.wire.bodies.stats import TopicOffset
    from rmqd.wire.message_queue import MessageQueue

Search = Callable[["MessageQueue", int], Awaitable[int]]
"""Asks a broker for the first message that was stored at a time (Unix milliseconds) or later."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a group is to be moved.

    `number` is the offset of `offset`, the Unix milliseconds of `time`, the messages of `skip`. `offsets` are those of
    `exact` by broker and queue id; other queues stay.
    """

    kind: Literal["first", "last", "offset", "time", "skip", "exact"]
    number: int = 0
    offsets: Mapping[tuple[str, int], int] | None = None
    forward_only: bool = False
    """A queue that is there or further already stays."""

    @property
    def timestamp_ms(self) -> int | None:
        """The same as brokers take it that reset by time alone, -1 being the end; None where it is no time."""
        return {"first": 0, "last": -1, "time": self.number}.get(self.kind)

    async def offset_in(
        self, queue: MessageQueue, ends: TopicOffset, committed: int | None, search: Search
    ) -> int | None:
        """The offset in a queue, not yet cut to the queue's ends; None where the queue stays. Raises RmqdError."""
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
