"""Where a group in POP mode begins.

Brokers pop from the offset that they have for the group. Where they have none, a pop can ask them to begin at the
queue's first message or at its end, and nothing else. So a new group's starts are stored before its first pop.
"""

from __future__ import annotations

from dataclasses import replace

from rmqd.consumer.context import GroupContext
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.pop import ANY_QUEUE


async def begin(context: GroupContext, message_queue: MessageQueue) -> None:
    """Have the group founded before the first pop of an assignment. Raises RmqdError.

    After that, the queues of a new group have offsets. A queue without one is a later queue, of which this member need
    not know yet. So each pop tells the broker to begin at the first message of such a queue: see `PopRequest.go_by`.
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
