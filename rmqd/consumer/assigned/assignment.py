"""One assignment, a queue or all queues of a broker: the interface for rebalance, watchdog and status."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from rmqd.consumer.assigned.leaving import Leaving
from rmqd.consumer.assigned.loop import Loop
from rmqd.consumer.assigned.status import AssignmentStatus
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.context import GroupContext
from rmqd.consumer.stats.snapshot import QueueSnapshot
from rmqd.wire.message_queue import MessageQueue


class Assignment(ABC):
    """Acquires a message queue, consumes it, and releases it after `leave`.

    After `leave`, `run` ends when the messages in flight are finished and committed (or acknowledged, if popped), or
    when the drain time is over. A pulled queue belongs only to this member. A popped queue may belong to other members
    too; queue id -1 means all queues of the broker.
    """

    is_popped: ClassVar[bool]
    status: AssignmentStatus

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self._context = context
        self._leaving = Leaving(context, message_queue)

    @abstractmethod
    async def run(self) -> None:
        """Acquire the queue, consume it until `leave` is called, and release it."""

    @property
    def is_leaving(self) -> bool:
        """Whether `leave` was called."""
        return self._leaving.begun.is_set()

    @property
    def loop(self) -> Loop | None:
        """The loop that fetches the messages; None until the queue is acquired."""
        return self.status.loop

    @property
    def process_queues(self) -> Sequence[ProcessQueue]:
        """The caches of the queues with messages; empty until the queue is acquired."""
        return self.status.process_queues

    def snapshot(self) -> QueueSnapshot | None:
        """Return the current figures; None for a pulled queue before it is acquired.

        Before the acquisition there are figures only while another member has the queue's lock, or once the watchdog
        calls the queue stalled (`STALL_SECONDS` in `health.watchdog`).
        """
        return self.status.snapshot()

    def leave(self, drain_seconds: float, *, last: bool = False) -> None:
        """Release it after handlers had up to `drain_seconds` to finish their batches. Only the first call counts.

        `last` means that the whole group ends, so no other member waits for the queue: see `Leaving`.
        """
        self._leaving.begin(drain_seconds, last=last)

    def hurry(self) -> None:
        """Stop waiting for handlers."""
        self._leaving.hurried.set()

    def take_over_options(self) -> int:
        """Apply changed options at once. Returns how many cached messages the new filter discards."""
        return 0 if self.loop is None else self.loop.take_over_options()

    def apply_pauses(self) -> None:
        """Apply the operator's pauses and resumes."""
        if self.loop is not None:
            self.loop.apply_pauses()

    # Only pulled queues implement these; the defaults are for popped ones:

    def commit_offset(self) -> int | None:
        """Return the offset to commit; None before the acquisition, and if popped, because the broker keeps it."""
        return None

    def move_to(self, offset: int) -> bool:
        """Continue at `offset` at once, after a reset. Returns False if popped, because the broker keeps the offset."""
        return False

    def look_around(self) -> None:  # noqa: B027
        """Switch to another replica if the current one is down. Called every other second."""

    def restart(self) -> None:  # noqa: B027
        """Restart the loop at the same offset, because the watchdog found that it hangs."""

    async def abandon(self) -> None:  # noqa: B027
        """Commit finished messages. Called after the group has failed and all its tasks have ended."""
