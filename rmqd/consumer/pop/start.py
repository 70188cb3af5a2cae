"""The start offsets of a group in POP mode.

Brokers pop from the group's offset. If a queue has none, a pop can only ask to begin at the first message or at the
end. So the start offsets of a new group are stored before its first pop.
"""

from __future__ import annotations

from dataclasses import replace

from rmqd.consumer.context import GroupContext
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.pop import ANY_QUEUE


async def begin(context: GroupContext, message_queue: MessageQueue) -> None:
    """Store the start offsets of a new group before the first pop of an assignment. Raises RmqdError.

    After that, all queues of a new group have offsets. A queue without one was created later, and this member may not
    know it yet. So each pop asks the broker to begin at the first message of such a queue: see `PopRequest.go_by`.
    """
    await context.founding.ensure()
    for queue in context.client.routes.queues(message_queue.topic):
        is_own = message_queue in (queue, replace(queue, queue_id=ANY_QUEUE))
        if is_own and context.founding.is_owed(queue):
            await _store_start(context, queue)


async def _store_start(context: GroupContext, queue: MessageQueue) -> None:
    start = await context.founding.start(queue, await context.founding.stored(queue))
    if not start.is_stored:
        await context.store.commit(queue, start.offset)
        context.store.forget(queue)
