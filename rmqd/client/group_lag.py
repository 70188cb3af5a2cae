"""The lag of groups, read from the brokers without joining a group or pulling under its name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rmqd.client.api.admin_requests import cluster_info, consume_stats, consume_time_span, topic_stats
from rmqd.client.api.offset_requests import query_consumer_offset
from rmqd.errors import BrokerAwayError, NoBrokerError, RmqdError, RouteNotFoundError
from rmqd.wire.lite_topic import parent_of
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import LIGHT_QUEUE_ID, dlq_topic, retry_topic

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.runtime.clock import Clock
    from rmqd.wire.bodies.group_bodies import QueueTimeSpan
    from rmqd.wire.bodies.stats_bodies import TopicOffset

MAX_QUESTIONS = 32  # requests in flight, to limit the load on the brokers of a large cluster


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A group's offset and lag in one queue.

    `committed` is None if the group never committed: then every message of the queue counts as waiting.
    """

    broker: str
    queue: int
    committed: int | None
    min: int
    max: int
    lag: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class TopicLag:
    """A group's lag in one topic: the number of waiting messages, and the age of the oldest in seconds."""

    group: str
    topic: str
    lag: int
    lag_seconds: float
    queues: tuple[QueueLag, ...]

    def document(self) -> dict[str, Any]:
        """Return the element for `rmqd lag -o json`."""
        return asdict(self)


class LagReader:
    """Reads the lag of any number of groups, with at most 32 requests at once."""

    def __init__(self, client: ClientInstance, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._turn = asyncio.Semaphore(MAX_QUESTIONS)

    async def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has offsets on any broker, including its retry topic.

        The dead letter topic is omitted: no member consumes it, and its offset marks settled letters (`rmqd dlq`).
        """
        remoting = self._client.remoting
        cluster = await self._client.name_servers.ask(lambda address: cluster_info(remoting, address))
        masters = [broker.master for broker in cluster.broker_addr_table.values() if broker.master]
        if not masters:
            raise NoBrokerError(";".join(self._client.name_servers.addresses))
        stats = await asyncio.gather(*(consume_stats(remoting, master, group) for master in masters))
        return sorted({queue.topic for found in stats for queue in found.offset_table} - {dlq_topic(group)})

    async def topic_lag(self, group: str, topic: str) -> TopicLag:
        """Return the group's lag in one topic. Raises RouteNotFoundError, BrokerError, RemotingError."""
        await self._client.routes.lookup(parent_of(topic) or topic)
        brokers = sorted({self._client.routes.endpoint(queue) for queue in self._queues(topic)})
        parts = await asyncio.gather(*(self._broker_lag(group, topic, broker) for broker in brokers))
        found = tuple(queue for part in parts for queue in part)
        return TopicLag(
            group,
            topic,
            lag=sum(queue.lag for queue in found),
            lag_seconds=max((queue.lag_seconds for queue in found), default=0.0),
            queues=found,
        )

    def _queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic. A lite topic has one on each broker with queues of its parent."""
        routes, parent = self._client.routes, parent_of(topic)
        if parent is None:
            return routes.queues(topic)
        brokers = dict.fromkeys(queue.broker_name for queue in routes.queues(parent))
        return [MessageQueue(topic, broker, LIGHT_QUEUE_ID) for broker in brokers]

    async def retry_lag(self, group: str) -> TopicLag | None:
        """Return the group's lag in its retry topic; None if the topic does not exist yet."""
        try:
            return await self.topic_lag(group, retry_topic(group))
        except RouteNotFoundError:
            return None

    async def _broker_lag(self, group: str, topic: str, broker_name: str) -> list[QueueLag]:
        remoting, address = self._client.remoting, self._client.routes.address(broker_name)
        if address is None:
            raise BrokerAwayError(topic, broker_name)
        async with self._turn:
            spans = await consume_time_span(remoting, address, group, topic)
        routes = self._client.routes
        queues = [queue for queue in self._queues(topic) if routes.endpoint(queue) == broker_name]
        committed = await asyncio.gather(*(self._committed(address, group, queue) for queue in queues))
        # read last, so that no offset exceeds its queue's end
        async with self._turn:
            ends = (await topic_stats(remoting, address, topic)).offset_table
        return list(self._queue_lags(dict(zip(queues, committed, strict=True)), ends, spans))

    async def _committed(self, address: str, group: str, queue: MessageQueue) -> int | None:
        async with self._turn:
            return await query_consumer_offset(self._client.remoting, address, group, queue)

    def _queue_lags(
        self,
        committed: Mapping[MessageQueue, int | None],
        ends: Mapping[MessageQueue, TopicOffset],
        spans: Mapping[MessageQueue, QueueTimeSpan],
    ) -> Iterable[QueueLag]:
        now_ms = self._clock.wall() * 1000
        for queue, offset in committed.items():
            end = ends.get(queue)
            if end is None:  # the route is being changed: the broker has fewer queues than the route says
                continue
            first_waiting = max(offset or 0, end.min_offset)
            lag = max(0, end.max_offset - first_waiting)
            age_seconds = _age_ms(offset, end, spans.get(queue), now_ms) / 1000 if lag else 0.0
            yield QueueLag(
                queue.broker_name, queue.queue_id, offset, end.min_offset, end.max_offset, lag, round(age_seconds, 3)
            )


def _age_ms(offset: int | None, end: TopicOffset, span: QueueTimeSpan | None, now_ms: float) -> float:
    """Return the age of the oldest waiting message; 0 if it arrived after the query for times."""
    if span is None:
        return 0.0
    if offset is None or offset < end.min_offset:  # delay_time would refer to a message that does not exist
        return max(0.0, now_ms - span.min_time_stamp)
    return max(0.0, float(span.delay_time))


async def read_lags(
    reader: LagReader, groups: Mapping[str, Iterable[str] | None]
) -> tuple[list[TopicLag], dict[str, RmqdError]]:
    """Read the lags of groups. Returns the lags, and the errors by "group" or "group, topic".

    Each group is given with its topics; None stands for all topics in which it has offsets. An error does not prevent
    reading other groups and topics.
    """
    parts = await asyncio.gather(*(_group_lags(reader, group, topics) for group, topics in groups.items()))
    lags = [lag for found, _ in parts for lag in found]
    return lags, {where: error for _, errors in parts for where, error in errors.items()}


async def _group_lags(
    reader: LagReader, group: str, topics: Iterable[str] | None
) -> tuple[list[TopicLag], dict[str, RmqdError]]:
    if topics is None:
        try:
            topics = [topic for topic in await reader.topics_of(group) if topic != retry_topic(group)]
        except RmqdError as error:
            return [], {group: error}
        if not topics:
            return [], {group: RmqdError("it has no offset on any broker and is not in the configuration")}
    names = [*topics]
    answers = await asyncio.gather(
        *(reader.topic_lag(group, topic) for topic in names), reader.retry_lag(group), return_exceptions=True
    )
    lags: list[TopicLag] = []
    errors: dict[str, RmqdError] = {}
    for topic, answer in zip([*names, retry_topic(group)], answers, strict=True):
        if isinstance(answer, RmqdError):
            errors[f"{group}, {topic}"] = answer
        elif isinstance(answer, BaseException):
            raise answer
        elif answer is not None:
            lags.append(answer)
    return lags, errors
