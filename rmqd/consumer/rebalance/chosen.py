"""Queues that a program assigned: read by their group's offsets, without joining the group."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rmqd.consumer.context import GroupContext
from rmqd.consumer.founding.start_offset import Start
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.rebalance.division import Division, Share
from rmqd.wire.message_queue import MessageQueue


class ChosenDivision(Division):
    """Each queue that the program names, whoever else is in the group."""

    is_of_members = False

    def __init__(self, context: GroupContext, chosen: Collection[MessageQueue]) -> None:
        super().__init__(context)
        self._chosen = frozenset(chosen)

    async def share_of(
        self, topic: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], held: Collection[MessageQueue]
    ) -> Share:
        """The chosen queues of a topic, as far as they exist."""
        return Share(pulled=self._chosen & {*queues})

    def assignment(self, message_queue: MessageQueue, *, is_popped: bool) -> AssignedQueue:
        """The assignment for a chosen queue."""
        return ChosenQueue(self._context, message_queue)


class ChosenQueue(AssignedQueue):
    """Nothing is committed unless the program commits, or has asked for `auto_commit`: neither a start nor an end."""

    async def run(self) -> None:
        """Pull the queue until `leave`."""
        await (super().run() if self._context.options.auto_commit else self.consume())

    def commit_offset(self) -> int | None:
        """The offset for the rounds of commits; None if only the program commits."""
        return super().commit_offset() if self._context.options.auto_commit else None

    async def find_start(self) -> Start:
        """The stored offset; otherwise where a new group begins. Raises RmqdError."""
        context, queue = self._context, self.message_queue
        stored = await context.store.read(queue)
        context.store.take_over(queue, stored)
        return await context.founding.policy.of_new_group(queue) if stored is None else Start(stored, "committed", True)
