"""A queue that this member has, or all queues of a broker: what rebalance, watchdog and status may ask of it."""

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

    After `leave`, `run` ends once the messages that handlers had are finished and committed (or acknowledged, if
    popped), or the drain time is over. A queue that is pulled belongs to this member alone. A queue that is popped may
    belong to other members too; its queue id is -1 where the assignment stands for all queues of a broker.
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
        """The figures of the moment; None for a pulled queue before it was taken over.

        There are figures before that, too, while another member has the queue's lock, and once the watchdog calls the
        queue stalled (`STALL_SECONDS` in `health.watchdog`).
        """
        return self.status.snapshot()

    def leave(self, drain_seconds: float, *, last: bool = False) -> None:
        """Give it up; handlers get `drain_seconds` to finish what they have. The first call counts.

        `last` says that the whole group ends, so that no other member waits for the queue: see `Leaving`.
        """
        self._leaving.begin(drain_seconds, last=last)

    def hurry(self) -> None:
        """Wait for handlers no longer."""
        self._leaving.hurried.set()

    def take_over_options(self) -> int:
        """Apply the group's present options at once. Returns how many cached messages the new filter lets go."""
        return 0 if self.loop is None else self.loop.take_over_options()

    def apply_pauses(self) -> None:
        """Take over what an operator paused or resumed."""
        if self.loop is not None:
            self.loop.apply_pauses()

    # What only pulled queues have; these are the answers of a popped one:

    def commit_offset(self) -> int | None:
        """The offset to commit; None before the queue was taken over, and if it is popped: then the broker keeps it."""
        return None

    def move_to(self, offset: int) -> bool:
        """Go on at `offset` at once, as an operator says. Returns False if popped: the broker keeps the offset."""
        return False

    def look_around(self) -> None:  # noqa: B027
        """Turn to another replica where the one that was asked is down; called every other second."""

    def restart(self) -> None:  # noqa: B027
        """Begin the loop anew at the same place: the watchdog found that it hangs."""

    async def abandon(self) -> None:  # noqa: B027
        """Commit what is finished. Called after the group has failed and all its tasks have ended."""
