"""Where a group begins that is new to a queue, if that is a point in time: brokers that pop know only the ends."""

from __future__ import annotations

import asyncio
import random

import structlog

from rmqd.consumer.context import GroupContext
from rmqd.consumer.pull_backoff import EXCEPTION_DELAY_SECONDS
from rmqd.consumer.start_offset import compute_start_offset
from rmqd.errors import RmqdError
from rmqd.wire.message import MessageQueue
from rmqd.wire.pop import ANY_QUEUE

log = structlog.get_logger(__name__)


async def begin_at_time(context: GroupContext, place: MessageQueue) -> None:
    """Commit where `consume_from_where: timestamp` says, for those queues of the assignment that have no offset yet.

    All members of the group come to the same offsets. Tries until every queue has one.
    """
    if context.options.consume_from_where != "timestamp":
        return
    while True:
        queues = context.client.routes.queues(place.topic)
        own = [queue for queue in queues if queue.broker_name == place.broker_name]
        try:
            for queue in own:
                if place.queue_id in (ANY_QUEUE, queue.queue_id) and await context.store.read(queue) is None:
                    offset = await compute_start_offset(context.client, context.options, queue, None)
                    await context.store.commit(queue, offset)
                    context.store.forget(queue)
            return
        except RmqdError as error:
            if not error.is_told:
                log.warning("queue.start_failed", queue=str(place), error=str(error))
            await asyncio.sleep(EXCEPTION_DELAY_SECONDS * random.uniform(0.75, 1.25))
