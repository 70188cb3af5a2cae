"""The broker data of a diagnosis: whether brokers answer, store messages, and have the right time.

Messages that a diagnosis names: the first waiting message of a stalled queue, and the last retried ones.

Collects the data for the diagnosis of a group, from brokers and, through them, from its members.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rmqd.client.api.admin_requests import (
    broker_config,
    broker_runtime_info,
    cluster_info,
    consume_stats,
    request_modes,
    topic_stats,
)
from rmqd.client.api.group_requests import consumer_running_info, subscription_groups
from rmqd.client.api.pull_requests import read_part
from rmqd.client.group_lag import LagReader, TopicLag
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.errors.broker_errors import MemberSilentError
from rmqd.operate.diagnosis.diagnosis_facts import (
    BrokerFacts,
    DiagnosisSnapshot,
    MemberFacts,
    QueueFacts,
    SeenMessage,
    TopicFacts,
)
from rmqd.operate.diagnosis.progress_findings import judge, needs_second_snapshot, stuck
from rmqd.operate.queries.group_queries import connections
from rmqd.operate.queries.message_queries import Brokers, FoundMessage, decoded
from rmqd.wire.bodies.route_data import MASTER_ID
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic, retry_topic, topic_of_pop_retry

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.consumer.health.causes import Problem
    from rmqd.consumer.health.group_problems import Finding
    from rmqd.operate.diagnosis.diagnosis_facts import DiagnosisSnapshot
    from rmqd.operate.queries.message_queries import BrokerResponses, Brokers
    from rmqd.runtime.clock import Clock
    from rmqd.wire.bodies.route_data import ClusterInfo
    from rmqd.wire.bodies.stats_bodies import Connection, ConsumerConnection


_RUNTIME: Final = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_MOST_DISK: Final = 0.90  # the maximum in Java: CleanCommitLogService limits diskSpaceWarningLevelRatio


async def broker_facts(brokers: Brokers, info: ClusterInfo, clock: Clock) -> dict[str, BrokerFacts]:
    """Return facts on all brokers by name. Refused facts are unknown; a broker without any response is silent."""

    async def figures(address: str) -> tuple[float, Mapping[str, str]]:
        asked_at = clock.wall()
        told = await broker_runtime_info(brokers.client.remoting, address)
        return (asked_at + clock.wall()) / 2, told

    settings, runtime = await asyncio.gather(
        brokers.ask(lambda address: broker_config(brokers.client.remoting, address)), brokers.ask(figures)
    )
    return {
        name: _facts(name, dict(sorted(broker.broker_addrs.items())), settings, runtime)
        for name, broker in sorted(info.broker_addr_table.items())
    }


def _facts(
    name: str,
    replicas: Mapping[int, str],
    settings: BrokerResponses[dict[str, str]],
    runtime: BrokerResponses[tuple[float, Mapping[str, str]]],
) -> BrokerFacts:
    values = settings.by_broker.get(name, {})
    at, figures = runtime.by_broker.get(name, (0.0, {}))
    silences = [error for error in (settings.errors.get(name), runtime.errors.get(name)) if error is not None]
    is_silent = len(silences) == 2 and all(isinstance(error, RemotingError) for error in silences)
    return BrokerFacts(
        name=name,
        master=replicas.get(MASTER_ID),
        slaves=tuple(address for number, address in replicas.items() if number != MASTER_ID),
        silence=str(silences[0]) if is_silent else None,
        permission=int(told) if (told := values.get("brokerPermission", "")).isdecimal() else None,
        **_disk(values, figures),
        clock_ahead_seconds=_clock_ahead(at, figures),
        makes_groups=values.get("autoCreateSubscriptionGroup", "true") == "true",
    )


def _disk(settings: Mapping[str, str], figures: Mapping[str, str]) -> dict[str, float]:
    """Return the used share of the disk and its limit; empty if the broker does not report both."""
    limit, used = settings.get("diskSpaceWarningLevelRatio", ""), figures.get("commitLogDiskRatio", "")
    if not limit.isdecimal():  # the embedded broker stores in memory
        return {}
    try:
        return {"disk_used": float(used), "disk_limit": min(int(limit) / 100, _MOST_DISK)}
    except ValueError:
        return {}


def _clock_ahead(at: float, figures: Mapping[str, str]) -> float | None:
    """Return by how much a broker's clock is ahead, from its start time and its runtime in whole seconds."""
    begun, runs = figures.get("bootTimestamp", ""), _RUNTIME.fullmatch(figures.get("runtime", ""))
    if not begun.isdecimal() or runs is None:
        return None
    days, hours, minutes, seconds = map(int, runs.groups())
    running_seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds + 0.5
    return int(begun) / 1000 + running_seconds - at


MOST_HEADS: Final = 8
MOST_RETRIED: Final = 32


async def first_waiting(
    client: ClientInstance, snapshot: DiagnosisSnapshot, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, SeenMessage]:
    """Return the first waiting message of each of the first eight queues, if it can be read."""
    asked = list(queues)[:MOST_HEADS]
    found = await asyncio.gather(*(_first(client, queue, snapshot.place(queue) or 0) for queue in asked))
    return {queue: one for queue, one in zip(asked, found, strict=True) if one is not None}


async def _first(client: ClientInstance, queue: MessageQueue, offset: int) -> SeenMessage | None:
    address = client.routes.address(client.routes.endpoint(queue))
    if address is None:
        return None
    try:
        part = await read_part(client.remoting, address, queue, offset, 1)
        messages = list(decoded(part.records, queue.topic, queue.broker_name))
    except RmqdError:
        return None
    return _seen(messages[0]) if messages else None


async def newest_retried(brokers: Brokers, snapshot: DiagnosisSnapshot) -> tuple[SeenMessage, ...]:
    """Return the newest messages of the group's retry topic; none unless a member reports recent failures."""
    infos = [member.info for member in snapshot.members.values() if member.info is not None]
    if not any(one.consume_failed_tps for info in infos for one in info.status_table.values()):
        return ()
    remoting, topic = brokers.client.remoting, retry_topic(snapshot.group)

    async def question(address: str) -> list[FoundMessage]:
        found: list[FoundMessage] = []
        for queue, ends in (await topic_stats(remoting, address, topic)).offset_table.items():
            low = max(ends.min_offset, ends.max_offset - MOST_RETRIED)
            part = await read_part(remoting, address, queue, low, MOST_RETRIED)
            found += decoded(part.records, topic, queue.broker_name)
        return found

    answers = await brokers.ask(question)
    return tuple(_seen(one) for messages in answers.by_broker.values() for one in messages)


def _seen(message: FoundMessage) -> SeenMessage:
    return SeenMessage(
        msg_id=message.msg_id,
        queue=MessageQueue(message.topic, message.broker, message.queue),
        offset=message.offset,
        keys=message.keys,
        reconsume_times=message.reconsume_times,
        stored_at=message.stored_at_ms / 1000,
    )


SECOND_LOOK_SECONDS: Final = 7.0
"""Longer than a hand-over takes (5 s), or the interval of members' commits (5 s)."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The problems of a group, the most likely first, and failed queries."""

    group: str
    problems: tuple[Problem, ...]
    errors: Mapping[str, RmqdError]


async def diagnose(
    client: ClientInstance, clock: Clock, group: str, topics: Iterable[str] = (), of_daemon: Iterable[Finding] = ()
) -> Diagnosis:
    """Diagnose a group; take a second snapshot after some seconds if one could mislead.

    `topics` are known subscriptions in addition to the members' own. `of_daemon` are a daemon's findings. Raises
    RemotingError if no name server answers.
    """
    gatherer = _Gatherer(client, clock, group, frozenset(topics))
    first, errors = await gatherer.snapshot()
    if not needs_second_snapshot(first):
        return Diagnosis(group, tuple(judge(first, of_daemon=of_daemon)), errors)
    await clock.sleep(SECOND_LOOK_SECONDS)
    second, errors = await gatherer.snapshot()
    second = replace(second, heads=await first_waiting(client, second, stuck(first, second)))
    return Diagnosis(group, tuple(judge(first, second, of_daemon)), errors)


class _Gatherer:
    """Takes snapshots of one group, without joining it or pulling under its name."""

    def __init__(self, client: ClientInstance, clock: Clock, group: str, topics: frozenset[str]) -> None:
        self._client = client
        self._clock = clock
        self._group = group
        self._topics = topics

    async def snapshot(self) -> tuple[DiagnosisSnapshot, Mapping[str, RmqdError]]:
        """Return a snapshot and the failed queries. Unreachable brokers are part of the snapshot."""
        client, group = self._client, self._group
        info = await client.name_servers.ask(lambda address: cluster_info(client.remoting, address))
        brokers = Brokers(client, info)
        facts, tables, known, modes = await asyncio.gather(
            broker_facts(brokers, info, self._clock),
            brokers.ask(lambda address: subscription_groups(client.remoting, address)),
            connections(brokers, group),
            brokers.ask(lambda address: request_modes(client.remoting, address)),
        )
        errors = {name: why for name, why in {**tables.errors, **known.errors}.items() if not facts[name].silence}
        views = known.by_broker
        members = await self._members(brokers, views)
        if any(member.silence for member in members.values()):  # a member that left in the meantime does not count
            views = (await connections(brokers, group)).by_broker
            here = _by_member(views)
            members = {client_id: member for client_id, member in members.items() if client_id in here}
        topics = await self._topic_facts(await self._names(brokers, views, members))
        queues, unread = await self._places(topics, {name for name, one in facts.items() if one.silence})
        snapshot = DiagnosisSnapshot(
            group=group,
            at=self._clock.wall(),
            name_servers=", ".join(client.name_servers.addresses),
            brokers=facts,
            settings={name: table[group] for name, table in tables.by_broker.items() if group in table},
            views=views,
            topics=topics,
            members=members,
            queues=queues,
            modes={
                name: {topic: one.mode for (topic, whose), one in table.items() if whose == group}
                for name, table in modes.by_broker.items()
            },
        )
        return replace(snapshot, retried=await newest_retried(brokers, snapshot)), errors | unread

    async def _members(self, brokers: Brokers, views: Mapping[str, ConsumerConnection]) -> dict[str, MemberFacts]:
        known = _by_member(views)

        async def ask(client_id: str) -> MemberFacts:
            near = next(iter(known[client_id]))
            remoting, group = brokers.client.remoting, self._group
            asked = await brokers.ask(lambda at: consumer_running_info(remoting, at, group, client_id), [near])
            why = asked.errors.get(near)
            # a broker with two connections of a member asks one of them, possibly an abandoned one
            is_silent = isinstance(why, RemotingError | MemberSilentError) and len(known[client_id][near]) == 1
            return MemberFacts(
                client_id=client_id,
                connections={name: tuple(found) for name, found in known[client_id].items()},
                info=asked.by_broker.get(near),
                silence=str(why) if is_silent else None,
            )

        return {one.client_id: one for one in await asyncio.gather(*map(ask, sorted(known)))}

    async def _names(
        self, brokers: Brokers, views: Mapping[str, ConsumerConnection], members: Mapping[str, MemberFacts]
    ) -> set[str]:
        """Return the group's subscribed topics; without members, the topics in which it has offsets."""
        names = set(self._topics)
        for view in views.values():
            names |= view.subscription_table.keys()
        for member in members.values():
            names |= (member.subscriptions or {}).keys()
        if not views:
            remoting, group = self._client.remoting, self._group
            stats = await brokers.ask(lambda address: consume_stats(remoting, address, group))
            names |= {queue.topic for one in stats.by_broker.values() for queue in one.offset_table}
        return {name for name in names if not self._is_retry(name)}

    def _is_retry(self, topic: str) -> bool:
        return is_retry_topic(topic) or topic_of_pop_retry(self._group, topic) is not None

    async def _topic_facts(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        async def ask(topic: str) -> TopicFacts:
            try:
                route = await self._client.routes.refresh(topic)
            except RouteNotFoundError:
                return TopicFacts(topic=topic, missing=True)
            except RmqdError as error:
                return TopicFacts(topic=topic, error=str(error))
            return TopicFacts(topic=topic, route=route, queues=tuple(self._client.routes.queues(topic)))

        return {one.topic: one for one in await asyncio.gather(*map(ask, sorted(names)))}

    async def _places(
        self, topics: Mapping[str, TopicFacts], silent: set[str]
    ) -> tuple[dict[MessageQueue, QueueFacts], dict[str, RmqdError]]:
        """Return the group's offsets in each queue of topics with a route, on reachable brokers, and the refusals."""
        reader = LagReader(self._client, self._clock)

        async def ask(topic: str) -> TopicLag | RmqdError | None:
            try:
                retries = topic == retry_topic(self._group)
                return await (reader.retry_lag(self._group) if retries else reader.topic_lag(self._group, topic))
            except RmqdError as error:
                return error

        names = [one.topic for one in topics.values() if one.queues and not _is_on(one, silent)]
        if not silent:
            names.append(retry_topic(self._group))
        found = dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
        queues = (_queue_facts(lag) for lag in found.values() if isinstance(lag, TopicLag))
        errors = {topic: why for topic, why in found.items() if isinstance(why, RmqdError)}
        return {one.queue: one for some in queues for one in some}, errors


def _is_on(topic: TopicFacts, brokers: set[str]) -> bool:
    return any(queue.broker_name in brokers for queue in topic.queues)


def _queue_facts(lag: TopicLag) -> Iterable[QueueFacts]:
    for one in lag.queues:
        queue = MessageQueue(lag.topic, one.broker, one.queue)
        yield QueueFacts(queue=queue, committed=one.committed, min=one.min, max=one.max, age_seconds=one.lag_seconds)


def _by_member(views: Mapping[str, ConsumerConnection]) -> dict[str, dict[str, list[Connection]]]:
    """Return the connections of each member, by broker name."""
    known: dict[str, dict[str, list[Connection]]] = {}
    for name, view in views.items():
        for one in view.connection_set:
            known.setdefault(one.client_id, {}).setdefault(name, []).append(one)
    return known
