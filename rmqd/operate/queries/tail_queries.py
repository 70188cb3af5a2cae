"""Follows a topic: messages as they arrive, without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rmqd.client.api.offset_requests import get_max_offset, search_offset
from rmqd.client.api.pull_requests import read_part
from rmqd.errors import RmqdError
from rmqd.operate.queries.message_queries import FoundMessage, decoded
from rmqd.operate.queries.topic_queries import MOST_AT_ONCE, matches, queue_address

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.wire.bodies.heartbeat_data import SubscriptionData
    from rmqd.wire.message_queue import MessageQueue


HOLD_SECONDS: Final = 10.0  # how long a broker holds a pull without messages
AGAIN_SECONDS: Final = 1.0

OnMessage = Callable[[FoundMessage], None]
Complain = Callable[[str, RmqdError], None]


async def follow(
    client: ClientInstance,
    subscription: SubscriptionData,
    on_message: OnMessage,
    complain: Complain,
    *,
    since_ms: int | None = None,
    most: int | None = None,
) -> None:
    """Call `on_message` for each arriving message that matches, up to `most` messages or until cancelled.

    It begins at the queues' ends, or with the messages stored since a time (Unix milliseconds). `complain` is called
    once for a broker that cannot be reached, which is asked again every second. Queues that are added later are not
    followed. Raises RmqdError if the topic, or a queue's end, cannot be found at the start.
    """
    await client.routes.lookup(subscription.topic)
    queues = client.routes.queues(subscription.topic)
    starts = await asyncio.gather(*(_start(client, queue, since_ms) for queue in queues))
    came: asyncio.Queue[FoundMessage] = asyncio.Queue(MOST_AT_ONCE)
    async with asyncio.TaskGroup() as tasks:
        followed = [
            tasks.create_task(_follow_queue(client, queue, start, subscription, came, complain))
            for queue, start in zip(queues, starts, strict=True)
        ]
        told = 0
        while most is None or told < most:
            on_message(await came.get())
            told += 1
        for task in followed:
            task.cancel()


async def _start(client: ClientInstance, queue: MessageQueue, since_ms: int | None) -> int:
    address = queue_address(client, queue)
    if since_ms is None:
        return await get_max_offset(client.remoting, address, queue)
    return await search_offset(client.remoting, address, queue, since_ms)


async def _follow_queue(
    client: ClientInstance,
    queue: MessageQueue,
    offset: int,
    subscription: SubscriptionData,
    came: asyncio.Queue[FoundMessage],
    complain: Complain,
) -> None:
    is_reported = False
    while True:
        try:
            part = await read_part(
                client.remoting, queue_address(client, queue), queue, offset, MOST_AT_ONCE,
                subscription=subscription, hold_seconds=HOLD_SECONDS,
            )  # fmt: skip
            found = list(decoded(part.records, queue.topic, queue.broker_name))
            is_reported = False
        except RmqdError as error:
            if not is_reported:
                complain(str(queue), error)
                is_reported = True
            await client.clock.sleep(AGAIN_SECONDS)
            continue
        for message in found:
            if message.offset >= offset and matches(message, subscription):
                await came.put(message)
        offset = part.next_offset
