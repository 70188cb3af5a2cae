"""A queue that this member has, or all queues of a broker: what the rest of the group asks of it."""

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
    """Takes a message queue over, has its messages handled, and gives it up when told to leave.

    `run` ends when what handlers had is finished and the broker knows it, or when the time for that is over. A queue
    that is pulled belongs to this member alone. A queue that is popped may belong to other members too; its queue id is
    -1 where the assignment stands for all queues of a broker.
    """

    is_popped: ClassVar[bool]
    status: AssignmentStatus

    def __init__(self, context: GroupContext, message_queue: MessageQueue) -> None:
        self.message_queue = message_queue
        self._context = context
        self._leaving = Leaving(context, message_queue)

    @abstractmethod
    async def run(self) -> None:
        """Take the queue over and consume it until `leave` is called; then give it up."""

    @property
    def is_leaving(self) -> bool:
        """Whether `leave` was called."""
        return self._leaving.begun.is_set()

    @property
    def loop(self) -> Loop | None:
        """What brings the messages; None until it was taken over."""
        return self.status.loop

    @property
    def process_queues(self) -> Sequence[ProcessQueue]:
        """The caches of the queues that messages came from; none before it was taken over."""
        return self.status.process_queues

    def snapshot(self) -> QueueSnapshot | None:
        """The figures of the moment; None until the queue was taken over, unless that takes too long."""
        return self.status.snapshot()

    def leave(self, drain_seconds: float, *, last: bool = False) -> None:
        """Give it up; handlers get `drain_seconds` to finish what they have."""
        self._leaving.begin(drain_seconds, last=last)

    def hurry(self) -> None:
        """Wait for handlers no longer."""
        self._leaving.hurried.set()

    def take_over(self) -> int:
        """Apply the group's present options at once. Returns how many cached messages the new filter lets go."""
        return 0 if self.loop is None else self.loop.take_over()

    def apply_pauses(self) -> None:
        """Take over what an operator paused or resumed."""
        if self.loop is not None:
            self.loop.apply_pauses()

    # What only one of the two kinds has an answer to:

    def commit_offset(self) -> int | None:
        """The offset to commit; None where there is none: brokers keep those of popped queues."""
        return None

    def move_to(self, offset: int) -> bool:
        """Go on at `offset` at once, as an operator says. Returns whether this member moves the queue itself."""
        return False

    def look_around(self) -> None:  # noqa: B027
        """Turn to another replica where the one that was asked is down; called every other second."""

    def restart(self) -> None:  # noqa: B027
        """Begin the loop anew at the same place: the watchdog found that it hangs."""

    async def abandon(self) -> None:  # noqa: B027
        """Commit what is finished of a group that has failed, and of which nothing runs any more."""
