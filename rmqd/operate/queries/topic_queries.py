"""Queries for topics, and for messages in a range of a queue's offsets. No consumer group is needed to read them."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rmqd.client.api.admin_requests import topic_config, topic_configs, topic_consumers, topic_stats
from rmqd.client.api.offset_requests import get_max_offset, get_min_offset, query_consumer_offset, search_offset
from rmqd.client.api.pull_requests import read_records
from rmqd.client.brokers import Brokers
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import BrokerError, RequestCodeNotSupportedError, TopicNotExistError
from rmqd.wire.bodies.config_bodies import MESSAGE_TYPE, TopicConfig
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.bodies.route_data import PERM_READ, PERM_WRITE
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages, open_all_bodies
from rmqd.wire.messages.message import CorruptMessage, Message
from rmqd.wire.topics import REPLY_TOPIC_SUFFIX, SYSTEM_TOPIC_PREFIX, is_dlq_topic, is_retry_topic, is_system_topic


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """One topic in a list. `queues` is the number of readable queues of all brokers. `permissions` is rw, r, w or "".

    `message_type` is from the topic's settings; "" if it is not set, as on brokers of 4.x.
    """

    topic: str
    queues: int
    permissions: str
    message_type: str
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicQueue:
    """A queue's `min` and `max` offset, and the store time of its last message (Unix milliseconds; 0 if none)."""

    broker: str
    queue: int
    min: int
    max: int
    last_stored_ms: int


@dataclass(frozen=True, slots=True)
class TopicDetail:
    """All details of a topic. `messages` counts the stored messages; `groups` read the topic now or did in the past."""

    topic: str
    messages: int
    queues: tuple[TopicQueue, ...]
    groups: tuple[str, ...]
    brokers: Mapping[str, Mapping[str, Any]]
    """The topic's settings by broker name."""


async def list_topics(
    brokers: Brokers, *, namespace: str = "", with_system: bool = False
) -> tuple[list[TopicSummary], dict[str, RmqdError]]:
    """Return the topics, sorted by name, and the errors of failed queries by broker name.

    With a `namespace`, only its topics are returned. `with_system` includes RocketMQ's own, retry and DLQ topics.
    """
    tables = await brokers.request_masters(topic_configs)
    prefix, where = f"{namespace}%" if namespace else "", dict[str, dict[str, TopicConfig]]()
    for broker, table in tables.found.items():
        for topic, config in table.items():
            if topic.startswith(prefix) and (with_system or not _is_inner(topic, brokers)):
                where.setdefault(topic, {})[broker] = config
    return [_summary(topic, where[topic]) for topic in sorted(where)], dict(tables.errors)


async def show_topic(brokers: Brokers, topic: str) -> tuple[TopicDetail, dict[str, RmqdError]]:
    """Return a topic's details, and the errors of failed queries. Raises RmqdError if no reachable broker has it."""
    configs = await brokers.request_masters(_config, topic)
    missing = [error for error in configs.errors.values() if isinstance(error, TopicNotExistError)]
    errors = {name: error for name, error in configs.errors.items() if error not in missing}
    if not configs.found:
        unknown = RmqdError(f"no broker has topic {topic}; run `rmqd topics list` to see all")
        raise next(iter(errors.values()), unknown)
    stats, groups = await asyncio.gather(
        brokers.request_masters(topic_stats, topic, names=configs.found),
        brokers.request_masters(topic_consumers, topic, names=configs.found),
    )
    queues = tuple(
        TopicQueue(queue.broker_name, queue.queue_id, ends.min_offset, ends.max_offset, ends.last_update_timestamp)
        for table in stats.found.values()
        for queue, ends in sorted(table.offset_table.items())
    )
    detail = TopicDetail(
        topic,
        sum(queue.max - queue.min for queue in queues),
        queues,
        tuple(sorted({group for found in groups.found.values() for group in found})),
        {name: _settings(config) for name, config in configs.found.items()},
    )
    return detail, {**errors, **stats.errors, **groups.errors}


async def _config(remoting: RemotingClient, address: str, topic: str) -> TopicConfig:
    """Return a topic's settings on one broker. A broker before 5.0 can only return the settings of all topics."""
    try:
        return await topic_config(remoting, address, topic)
    except RequestCodeNotSupportedError:
        table = await topic_configs(remoting, address)
        if topic not in table:
            raise BrokerError.of(ResponseCode.TOPIC_NOT_EXIST, "", address, RequestCode.GET_ALL_TOPIC_CONFIG) from None
        return table[topic]


def _is_inner(topic: str, brokers: Brokers) -> bool:
    """Return whether RocketMQ, not a user, created a topic, such as the topics named like a broker or a cluster."""
    is_derived = is_retry_topic(topic) or is_dlq_topic(topic) or topic.endswith(REPLY_TOPIC_SUFFIX)
    is_system = is_system_topic(topic) or topic.startswith(SYSTEM_TOPIC_PREFIX)
    return is_derived or is_system or topic in brokers.masters or topic in brokers.clusters


def _summary(topic: str, configs: Mapping[str, TopicConfig]) -> TopicSummary:
    permissions = 0
    for config in configs.values():
        permissions |= config.perm
    return TopicSummary(
        topic,
        sum(config.read_queue_nums for config in configs.values()),
        _permissions(permissions),
        next((kind for config in configs.values() if (kind := config.attributes.get(MESSAGE_TYPE))), ""),
        tuple(configs),
    )


def _settings(config: TopicConfig) -> dict[str, Any]:
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "permissions": _permissions(config.perm),
        "attributes": config.attributes,
    }


def _permissions(perm: int) -> str:
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "")


MAX_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class OffsetWindow:
    """A range of a queue's offsets, from `start` to before `end`."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets in the window. After filters and compaction, there may be fewer messages."""
        return max(0, self.end - self.start)

    def clamp(self, offset: int | None) -> int:
        """Return `offset` limited to the range from `start` to `end`; `start` for None."""
        return self.start if offset is None else min(max(offset, self.start), self.end)


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """The messages read from a queue, in order and with decompressed bodies, and the corrupt messages among them."""

    messages: Sequence[Message] = ()
    corrupt: Sequence[CorruptMessage] = ()


async def whole_queues(client: ClientInstance, topic: str) -> list[OffsetWindow]:
    """Return a window for each readable queue of a topic, with all messages that it has now. Raises RmqdError."""

    async def whole(queue: MessageQueue) -> OffsetWindow:
        address = client.routes.address_for(queue)
        ends = await asyncio.gather(
            get_min_offset(client.remoting, address, queue), get_max_offset(client.remoting, address, queue)
        )
        return OffsetWindow(queue, *ends)

    await client.routes.lookup(topic)
    return await asyncio.gather(*(whole(queue) for queue in client.routes.queues(topic)))


async def windows_between(
    client: ClientInstance, topic: str, from_ms: int | None = None, to_ms: int | None = None
) -> list[OffsetWindow]:
    """Return a window for each readable queue of a topic, with the messages stored at `from_ms` to before `to_ms`.

    Times are Unix milliseconds; None means without limit. Raises RmqdError.
    """

    async def cut(window: OffsetWindow) -> OffsetWindow:
        async def find(at_ms: int | None, otherwise: int) -> int:
            if at_ms is None:
                return otherwise
            found = await search_offset(client.remoting, client.routes.address_for(window.queue), window.queue, at_ms)
            return window.clamp(found)

        start, end = await asyncio.gather(find(from_ms, window.start), find(to_ms, window.end))
        return OffsetWindow(window.queue, start, max(start, end))

    return await asyncio.gather(*(cut(window) for window in await whole_queues(client, topic)))


async def not_committed(client: ClientInstance, topic: str, group: str) -> list[OffsetWindow]:
    """Return, for each readable queue, a window of the messages that a group has not committed. Raises RmqdError."""

    async def cut(window: OffsetWindow) -> OffsetWindow:
        address = client.routes.address_for(window.queue)
        committed = await query_consumer_offset(client.remoting, address, group, window.queue)
        return OffsetWindow(window.queue, window.clamp(committed), window.end)

    return await asyncio.gather(*(cut(window) for window in await whole_queues(client, topic)))


async def read_window(
    client: ClientInstance, window: OffsetWindow, subscription: SubscriptionData, namespace: str
) -> AsyncIterator[ReadMessages]:
    """Yield the messages of a window that match the subscription, in parts. Raises RmqdError."""
    offset, address = window.start, client.routes.address_for(window.queue)
    while offset < window.end:
        most = min(MAX_AT_ONCE, window.end - offset)
        part = await read_records(client.remoting, address, window.queue, offset, most, subscription=subscription)
        block = open_all_bodies(frame_messages(part.records, window.queue, namespace=namespace))
        block.min_offset, block.max_offset = part.min_offset, part.max_offset
        ahead = range(offset, window.end)
        yield ReadMessages(
            [one for one in block.messages if one.queue_offset in ahead and matches(one.tags, subscription)],
            [one for one in block.corrupt if one.message.queue_offset in ahead],
        )
        if part.next_offset <= offset:  # the broker has no messages after this offset
            return
        offset = part.next_offset


async def read_newest(
    client: ClientInstance, windows: Iterable[tuple[OffsetWindow, SubscriptionData]], most: int, namespace: str
) -> ReadMessages:
    """Return the newest `most` messages of several windows that match their subscriptions, ordered by store time.

    Windows are read backwards. The next part is always from the window that may have the newest unread message.
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
        part = OffsetWindow(newest.window.queue, start, newest.reached)
        is_empty = True
        async for read in read_window(client, part, newest.subscription, namespace):
            messages += read.messages
            corrupt += read.corrupt
            if read.messages:
                newest.oldest_ms = min(newest.oldest_ms, read.messages[0].store_timestamp)
                is_empty = False
        newest.reached = start
        newest.step = newest.step * 2 if is_empty else MAX_AT_ONCE
        if start > newest.window.start:
            heapq.heapreplace(behind, newest)
        else:
            heapq.heappop(behind)
    messages.sort(key=lambda one: one.store_timestamp)
    return ReadMessages(messages[-most:], corrupt)


@dataclass(slots=True)
class _Backwards:
    """A window that is read backwards. Offsets from `reached` on were read; `oldest_ms` is their oldest store time."""

    window: OffsetWindow
    subscription: SubscriptionData
    reached: int
    oldest_ms: int = 2**63 - 1
    step: int = MAX_AT_ONCE  # doubled while no message matches, because the broker then skips them in one request

    def __lt__(self, other: _Backwards) -> bool:
        return self.oldest_ms > other.oldest_ms


def matches(tags: str | None, subscription: SubscriptionData) -> bool:
    """Return whether a message has a subscribed tag. Brokers compare only the hashes of tags, which may collide."""
    return not subscription.tags_set or tags in subscription.tags_set
