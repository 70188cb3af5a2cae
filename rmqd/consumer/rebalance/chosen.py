"""Queues that a program assigned. They are read from the group's offsets, without joining the group."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rmqd.consumer.context import GroupContext
from rmqd.consumer.founding.start_offset import Start
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.rebalance.division import Division, Share
from rmqd.wire.message_queue import MessageQueue


class ChosenDivision(Division):
    """All queues that the program assigned, regardless of the group's members."""

    is_of_members = False

    def __init__(self, context: GroupContext, chosen: Collection[MessageQueue]) -> None:
        super().__init__(context)
        self._chosen = frozenset(chosen)

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> Share:
        """Return the chosen queues of a topic that exist."""
        return Share(pulled=self._chosen & {*queues})

    def assignment(self, message_queue: MessageQueue, *, is_popped: bool) -> AssignedQueue:
        """Return the assignment for a chosen queue."""
        return ChosenQueue(self._context, message_queue)


class ChosenQueue(AssignedQueue):
    """A queue that commits its start and its end only with `auto_commit`. Otherwise only the program commits."""

    async def run(self) -> None:
        """Pull the queue until `leave`."""
        await (super().run() if self._context.options.auto_commit else self.consume())

    def commit_offset(self) -> int | None:
        """Return the offset for the periodic commits; None if only the program commits."""
        return super().commit_offset() if self._context.options.auto_commit else None

    async def find_start(self) -> Start:
        """Return the stored offset; otherwise the start offset of a new group. Raises RmqdError."""
        context, queue = self._context, self.message_queue
        stored = await context.store.read(queue)
        context.store.take_over(queue, stored)
        return await context.founding.policy.of_new_group(queue) if stored is None else Start(stored, "committed", True)
