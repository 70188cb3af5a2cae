"""Queries about a group to brokers and members. The queries neither join the group nor pull messages for it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rmqd.client.api.admin_requests import consume_stats, consume_time_span, request_modes, topic_stats
from rmqd.client.api.group_requests import consumer_connection, consumer_running_info, subscription_groups
from rmqd.client.api.offset_requests import query_consumer_offset
from rmqd.client.brokers import BrokerResponses, Brokers
from rmqd.errors import NoBrokerError, RemotingError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import ConsumerNotOnlineError, MemberSilentError
from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody, SubscriptionGroupConfig
from rmqd.wire.bodies.group_bodies import (
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
    QueueTimeSpan,
)
from rmqd.wire.bodies.heartbeat_data import ConsumeType, SubscriptionData
from rmqd.wire.bodies.stats_bodies import Connection, ConsumerConnection, TopicOffset
from rmqd.wire.lite_topic import parent_topic_of
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.receipt_handle import ANY_QUEUE_ID
from rmqd.wire.topics import LIGHT_QUEUE_ID, dlq_topic, retry_topic

SILENT_MEMBER_SECONDS: Final = 5.0  # a member that did not respond is not asked again for this time


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """A member of a group and the report that it sent (`info`). If there is no report, `error` gives the reason."""

    client_id: str
    connections: Mapping[str, tuple[Connection, ...]]
    """The member's connections, by broker name."""
    info: ConsumerRunningInfo | None = None
    error: RmqdError | None = None

    @property
    def silence_reason(self) -> str | None:
        """Why the member does not respond; None if it responds, or if its client cannot send reports."""
        # a broker with two connections of the member may ask on an unused one, so the error does not prove silence
        is_silent = isinstance(self.error, RemotingError | MemberSilentError)
        return str(self.error) if is_silent and len(next(iter(self.connections.values()))) == 1 else None

    @property
    def address(self) -> str:
        """The member's address ("host:port") as a broker sees it; "?" if unknown."""
        return next((one.client_addr for known in self.connections.values() for one in known), "?")

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData] | None:
        """The member's reported subscriptions by topic; None without a report."""
        return None if self.info is None else {one.topic: one for one in self.info.subscription_set}

    @property
    def orderly(self) -> bool | None:
        """Whether the member consumes in order; None if it does not report that."""
        value = None if self.info is None else self.info.properties.get(PROP_CONSUME_ORDERLY)
        return None if value is None else value == "true"

    @property
    def reports_queues(self) -> bool:
        """Whether the member reports its queues. Java's pull consumers do not report them."""
        return self.info is not None and self.info.properties.get(PROP_CONSUME_TYPE) != ConsumeType.ACTIVELY

    @property
    def on_spark(self) -> bool:
        """Whether the member is a Spark driver, which commits once per micro-batch and locks no queues."""
        return self.info is not None and self.info.user_consumer_info.get("engine") == "spark"

    @property
    def paused_queues(self) -> str:
        """Which queues an operator has paused, as rmqd's members report it: "3 queues", "all", or "" for no queues."""
        values = {} if self.info is None else self.info.user_consumer_info
        some = None if self.waits_for_circuit else re.search(r"(\d+) paused", values.get("queues", ""))
        if some is not None:
            return f"{some[1]} queue{'' if some[1] == '1' else 's'}"
        return "all" if values.get("state") == "paused" else ""

    @property
    def waits_for_circuit(self) -> bool:
        """Whether the handler's circuit breaker is open. The member then reports its queues as paused."""
        return self.info is not None and "circuit" in self.info.user_consumer_info

    @property
    def started_at(self) -> float | None:
        """When the member started, by its own clock (Unix seconds); None if it does not report that."""
        value = "" if self.info is None else self.info.properties.get(PROP_CONSUMER_START_TIMESTAMP, "")
        return int(value) / 1000 if value.isdecimal() else None

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """The queues that the member owns, according to its report; empty without a report."""
        return frozenset() if self.info is None else frozenset((*self.info.mq_table, *self.info.mq_pop_table))

    def pulled_queue_info(self, queue: MessageQueue) -> ProcessQueueInfo | None:
        """Return the member's report on a queue that it pulls; None if it does not report this queue."""
        return None if self.info is None else self.info.mq_table.get(queue)

    def popped_queue_infos(self, queue: MessageQueue) -> list[PopProcessQueueInfo]:
        """Return the reports on a queue that the member pops: on this queue, and on all queues of the broker."""
        table = {} if self.info is None else self.info.mq_pop_table
        anywhere = MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE_ID)
        return [table[at] for at in (queue, anywhere) if at in table]

    def owns(self, queue: MessageQueue) -> bool:
        return self.pulled_queue_info(queue) is not None or bool(self.popped_queue_infos(queue))

    def limit(self, name: str, default: int) -> int:
        """Return a limit that the member reports under Java's `name`; `default` if the member does not report it."""
        value = "" if self.info is None else self.info.properties.get(name, "")
        return int(value) if value.isdecimal() else default


@dataclass(frozen=True, slots=True)
class QueueLag:
    """A group's offset and lag in one queue.

    `committed` is None if the group never committed. Then all messages of the queue count as lag.
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


class GroupReader:
    """The queries about one group, sent to `brokers`. Queries of lags go to all brokers in the topics' routes."""

    def __init__(self, brokers: Brokers, group: str) -> None:
        self.brokers = brokers
        self.group = group
        self._silent: dict[str, tuple[float, MemberReport]] = {}

    async def connections(self, names: Iterable[str] | None = None) -> BrokerResponses[str, ConsumerConnection]:
        """Return the connected members by broker. Brokers without members of the group are omitted."""
        known = await self.brokers.request_masters(consumer_connection, self.group, names=names)
        errors = {name: why for name, why in known.errors.items() if not isinstance(why, ConsumerNotOnlineError)}
        return BrokerResponses(known.found, errors)

    async def settings(
        self, names: Iterable[str] | None = None
    ) -> BrokerResponses[str, SubscriptionGroupConfig | None]:
        """Return the group's settings by broker; None if a broker does not have the group. Never creates the group."""
        tables = await self.brokers.request_masters(subscription_groups, names=names)
        return BrokerResponses({name: table.get(self.group) for name, table in tables.found.items()}, tables.errors)

    async def modes(
        self, names: Iterable[str] | None = None
    ) -> BrokerResponses[str, Mapping[str, SetMessageRequestModeRequestBody]]:
        """Return whether the group pops or pulls, by broker and topic. Topics whose mode was never set are omitted."""
        tables = await self.brokers.request_masters(request_modes, names=names)
        modes = {
            name: {topic: one for (topic, whose), one in table.items() if whose == self.group}
            for name, table in tables.found.items()
        }
        return BrokerResponses(modes, tables.errors)

    async def members(self, known: Mapping[str, ConsumerConnection]) -> dict[str, MemberReport]:
        """Return all members' reports by client id. Each member is asked through the first broker that knows it."""
        connections = connections_by_member(known)
        asked = await asyncio.gather(*(self.member(one, connections[one]) for one in sorted(connections)))
        return {one.client_id: one for one in asked}

    async def member(self, client_id: str, connections: Mapping[str, tuple[Connection, ...]]) -> MemberReport:
        """Return one member's report. The member is asked through the first broker in `connections`.

        A member that did not respond is not asked again for SILENT_MEMBER_SECONDS, because the broker would wait 10 s
        again. After this time the member is asked again, because it may have been starting or reconnecting.
        """
        clock, near = self.brokers.client.clock, next(iter(connections))
        if client_id in self._silent:
            silent_at, report = self._silent[client_id]
            if clock.monotonic() - silent_at < SILENT_MEMBER_SECONDS:
                return report
        asked = await self.brokers.request_masters(consumer_running_info, self.group, client_id, names=[near])
        info, error = asked.found.get(near), asked.errors.get(near)
        report = MemberReport(client_id=client_id, connections=connections, info=info, error=error)
        self._silent.pop(client_id, None)
        if error is not None:
            self._silent[client_id] = clock.monotonic(), report
        return report

    async def topics(self) -> list[str]:
        """Return the topics in which the group has offsets on any broker, including its retry topic.

        The dead letter topic is omitted, because members do not consume it. Its offset belongs to `rmqd dlq`.
        """
        if not self.brokers.masters:
            await self.brokers.load_cluster_info()
        if not self.brokers.masters:
            raise NoBrokerError(";".join(self.brokers.client.name_servers.addresses))
        stats = await self.brokers.request_masters(consume_stats, self.group)
        for error in stats.errors.values():
            raise error
        return sorted(
            {queue.topic for one in stats.found.values() for queue in one.offset_table} - {dlq_topic(self.group)}
        )

    async def lag(self, topic: str) -> TopicLag:
        """Return the group's lag in one topic. Raises RouteNotFoundError, BrokerError, RemotingError."""
        routes = self.brokers.client.routes
        await routes.lookup(parent_topic_of(topic) or topic)
        by_broker = routes.by_endpoint(self._queues(topic))
        parts = await asyncio.gather(*(self._lags(topic, *by_broker[name]) for name in sorted(by_broker)))
        found = tuple(queue for part in parts for queue in part)
        oldest_seconds = max((queue.lag_seconds for queue in found), default=0.0)
        return TopicLag(self.group, topic, sum(queue.lag for queue in found), oldest_seconds, found)

    async def lags(self, topics: Iterable[str] | None = None) -> tuple[list[TopicLag], dict[str, RmqdError]]:
        """Return the group's lags in `topics` and in its retry topic, and the errors by the text "group, topic".

        None as `topics` means all topics in which the group has offsets. If the list of these topics cannot be read,
        the only error has the group's name as its key. An error in one topic does not affect other topics.
        """
        group, retries = self.group, retry_topic(self.group)
        if topics is None:
            try:
                topics = [topic for topic in await self.topics() if topic != retries]
            except RmqdError as error:
                return [], {group: error}
            if not topics:
                return [], {group: RmqdError("it has no offset on any broker and is not in the configuration")}
        found, errors = await self.lags_by_topic([*topics, retries])
        return [*found.values()], {f"{group}, {topic}": error for topic, error in errors.items()}

    async def lags_by_topic(self, topics: Iterable[str]) -> tuple[dict[str, TopicLag], dict[str, RmqdError]]:
        """Return the lags and the errors by topic. A missing retry topic of the group is not an error."""

        async def ask(topic: str) -> TopicLag | RmqdError | None:
            try:
                return await self.lag(topic)
            except RmqdError as error:
                is_retry = topic == retry_topic(self.group)  # brokers may not have created the retry topic yet
                return None if is_retry and isinstance(error, RouteNotFoundError) else error

        names = [*topics]
        answers = dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
        return (
            {topic: one for topic, one in answers.items() if isinstance(one, TopicLag)},
            {topic: one for topic, one in answers.items() if isinstance(one, RmqdError)},
        )

    def _queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic. A lite topic has one queue on each broker that has its parent topic."""
        routes, parent = self.brokers.client.routes, parent_topic_of(topic)
        if parent is None:
            return routes.queues(topic)
        brokers = dict.fromkeys(queue.broker_name for queue in routes.queues(parent))
        return [MessageQueue(topic, broker, LIGHT_QUEUE_ID) for broker in brokers]

    async def _lags(self, topic: str, *queues: MessageQueue) -> list[QueueLag]:
        """Return the lags in the topic's queues on one broker."""
        client, in_turn, group = self.brokers.client, self.brokers.in_turn, self.group
        remoting, address = client.remoting, client.routes.address_for(queues[0])
        spans = await in_turn(consume_time_span(remoting, address, group, topic))
        committed = await asyncio.gather(
            *(in_turn(query_consumer_offset(remoting, address, group, queue)) for queue in queues)
        )
        # read the ends after the offsets, so that no offset exceeds its queue's end
        ends = (await in_turn(topic_stats(remoting, address, topic))).offset_table
        offsets, now_ms = dict(zip(queues, committed, strict=True)), client.clock.wall() * 1000
        # while an operator changes the number of queues, the broker may have fewer queues than the route
        known = ((queue, offset) for queue, offset in offsets.items() if queue in ends)
        return [_queue_lag(queue, offset, ends[queue], spans.get(queue), now_ms) for queue, offset in known]


def connections_by_member(known: Mapping[str, ConsumerConnection]) -> dict[str, dict[str, tuple[Connection, ...]]]:
    """Return the connections of each member, by client id and broker name."""
    members: dict[str, dict[str, tuple[Connection, ...]]] = {}
    for name, view in known.items():
        for one in view.connection_set:
            at = members.setdefault(one.client_id, {})
            at[name] = (*at.get(name, ()), one)
    return members


def _queue_lag(
    queue: MessageQueue, committed: int | None, ends: TopicOffset, span: QueueTimeSpan | None, now_ms: float
) -> QueueLag:
    low, high = ends.min_offset, ends.max_offset
    lag = max(0, high - max(committed or 0, low))
    age_ms = 0.0  # remains 0 if the oldest waiting message was stored after the query for the age
    if lag and span is not None:
        is_deleted = committed is None or committed < low  # delay_time would refer to a message that does not exist
        age_ms = max(0.0, now_ms - span.min_time_stamp if is_deleted else float(span.delay_time))
    return QueueLag(queue.broker_name, queue.queue_id, committed, low, high, lag, round(age_ms / 1000, 3))


async def read_lags(
    brokers: Brokers, groups: Mapping[str, Iterable[str] | None]
) -> tuple[list[TopicLag], dict[str, RmqdError]]:
    """Return the lags and errors of groups. `groups` has each group's topics, as in `GroupReader.lags`."""
    parts = await asyncio.gather(*(GroupReader(brokers, group).lags(topics) for group, topics in groups.items()))
    lags = [lag for found, _ in parts for lag in found]
    return lags, {where: error for _, errors in parts for where, error in errors.items()}
