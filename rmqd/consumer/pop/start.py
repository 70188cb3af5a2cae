"""Where a group in POP mode begins: brokers pop from the offset that they have, and know only the ends besides."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import structlog

from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull.backoff import after_error
from rmqd.errors import RmqdError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.pop import ANY_QUEUE

log = structlog.get_logger(__name__)


async def begin(context: GroupContext, message_queue: MessageQueue) -> None:
    """Have the group founded before the first pop of an assignment. Tries until it is.

    The queues of a new group have offsets then. So a broker that meets a queue without one, which is new to it, and of
    which this member need not know yet, is told to begin at the queue's first message: see `PopRequest.go_by`.
    """
    while True:
        try:
            await context.founding.ensure()
            for queue in context.client.routes.queues(message_queue.topic):
                is_own = message_queue in (queue, replace(queue, queue_id=ANY_QUEUE))
                if is_own and context.founding.is_owed(queue):
                    await _store_start(context, queue)
            return
        except RmqdError as error:
            if not error.is_told:
                log.warning("queue.start_failed", queue=str(message_queue), error=str(error))
            context.client.routes.refresh_soon([message_queue.topic])
            await asyncio.sleep(after_error())


async def _store_start(context: GroupContext, queue: MessageQueue) -> None:
    start = await context.founding.start(queue, await context.store.read(queue))
    if not start.is_stored:
        await context.store.commit(queue, start.offset)
        context.store.forget(queue)
