"""Reads parts of queues, between two offsets or two times, without a group."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rmqd.client.api.offset import get_max_offset, get_min_offset, query_consumer_offset, search_offset
from rmqd.client.api.pull import read_part
from rmqd.errors import RouteNotFoundError
from rmqd.wire.messages.decode import frame_messages, open_all

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.client.looks.messages import FoundMessage
    from rmqd.wire.bodies.heartbeat import SubscriptionData
    from rmqd.wire.message_queue import MessageQueue
    from rmqd.wire.messages.message import CorruptMessage, Message

MOST_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Window:
    """The offsets of a queue from `start` to before `end`."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets. Filters and compaction may leave fewer messages."""
        return max(0, self.end - self.start)


@dataclass(frozen=True, slots=True)
class Read:
    """The opened messages of a part of a queue, in order, and its corrupt messages."""

    messages: Sequence[Message] = ()
    corrupt: Sequence[CorruptMessage] = ()


async def whole_queues(client: ClientInstance, topic: str) -> list[Window]:
    """Return the present content of all readable queues of a topic. Raises RmqdError."""

    async def whole(queue: MessageQueue) -> Window:
        address = queue_address(client, queue)
        ends = await asyncio.gather(
            get_min_offset(client.remoting, address, queue), get_max_offset(client.remoting, address, queue)
        )
        return Window(queue, *ends)

    await client.routes.lookup(topic)
    return await asyncio.gather(*(whole(queue) for queue in client.routes.queues(topic)))


async def between(
    client: ClientInstance, topic: str, from_ms: int | None = None, to_ms: int | None = None
) -> list[Window]:
    """Return the parts of a topic's queues that were stored at or after a time and before another (Unix milliseconds).

    If no message was stored at or after the time, a 4.x broker finds the nearest message: then the window begins or
    ends one message off. Raises RmqdError.
    """

    async def cut(window: Window) -> Window:
        async def find(at_ms: int | None, otherwise: int) -> int:
            if at_ms is None:
                return otherwise
            found = await search_offset(client.remoting, queue_address(client, window.queue), window.queue, at_ms)
            return min(max(found, window.start), window.end)

        start, end = await asyncio.gather(find(from_ms, window.start), find(to_ms, window.end))
        return Window(window.queue, start, max(start, end))

    return await asyncio.gather(*(cut(window) for window in await whole_queues(client, topic)))


async def not_committed(client: ClientInstance, topic: str, group: str) -> list[Window]:
    """Return the parts of a topic's queues that a group has not committed, which may be all. Raises RmqdError."""

    async def cut(window: Window) -> Window:
        address = queue_address(client, window.queue)
        committed = await query_consumer_offset(client.remoting, address, group, window.queue)
        start = window.start if committed is None else min(max(committed, window.start), window.end)
        return Window(window.queue, start, window.end)

    return await asyncio.gather(*(cut(window) for window in await whole_queues(client, topic)))


async def read_window(
    client: ClientInstance, window: Window, subscription: SubscriptionData, *, namespace: str = ""
) -> AsyncIterator[Read]:
    """Yield the messages of a window that match the subscription, part by part. Raises RmqdError."""
    offset, address = window.start, queue_address(client, window.queue)
    while offset < window.end:
        most = min(MOST_AT_ONCE, window.end - offset)
        part = await read_part(client.remoting, address, window.queue, offset, most, subscription=subscription)
        block = open_all(frame_messages(part.records, window.queue, namespace=namespace))
        block.min_offset, block.max_offset = part.min_offset, part.max_offset
        yield Read(
            [one for one in block.messages if offset <= one.queue_offset < window.end and matches(one, subscription)],
            [one for one in block.corrupt if offset <= one.message.queue_offset < window.end],
        )
        if part.next_offset <= offset:  # the queue ends here now
            return
        offset = part.next_offset


async def read_newest(
    client: ClientInstance,
    windows: Iterable[tuple[Window, SubscriptionData]],
    most: int,
    *,
    namespace: str = "",
) -> Read:
    """Return the newest messages of several queues that match their subscriptions, in order of store time.

    Queues are read backwards, always the queue that may have the newest unread message.
    """
    behind = [_Backwards(window, subscription, window.end) for window, subscription in windows if window.size]
    heapq.heapify(behind)
    messages: list[Message] = []
    corrupt: list[CorruptMessage] = []
    while behind:
        newest = behind[0]
        if sum(one.store_timestamp >= newest.oldest_ms for one in messages) >= most:
            break
        start = max(newest.window.start, newest.reached - newest.step)
        part = Window(newest.window.queue, start, newest.reached)
        is_empty = True
        async for read in read_window(client, part, newest.subscription, namespace=namespace):
            messages += read.messages
            corrupt += read.corrupt
            if read.messages:
                newest.oldest_ms = min(newest.oldest_ms, read.messages[0].store_timestamp)
                is_empty = False
        newest.reached = start
        newest.step = newest.step * 2 if is_empty else MOST_AT_ONCE
        if start > newest.window.start:
            heapq.heapreplace(behind, newest)
        else:
            heapq.heappop(behind)
    messages.sort(key=lambda one: one.store_timestamp)
    return Read(messages[-most:], corrupt)


@dataclass(slots=True)
class _Backwards:
    """A window that is read from its end. `oldest_ms` is the store time of the oldest message read so far."""

    window: Window
    subscription: SubscriptionData
    reached: int
    oldest_ms: int = 2**63 - 1
    step: int = MOST_AT_ONCE  # grows while nothing matches, because a broker skips such messages itself

    def __lt__(self, other: _Backwards) -> bool:
        return self.oldest_ms > other.oldest_ms


def matches(message: Message | FoundMessage, subscription: SubscriptionData) -> bool:
    """Return whether a message has a subscribed tag. Brokers compare only the hash of a tag, which others may share."""
    return not subscription.tags_set or message.tags in subscription.tags_set


def queue_address(client: ClientInstance, queue: MessageQueue) -> str:
    """Return the address of the broker that serves a queue. Raises RouteNotFoundError."""
    name = client.routes.endpoint(queue)
    address = client.routes.address(name)
    if address is None:
        raise RouteNotFoundError(queue.topic, f"no route names an address of broker {name}")
    return address
