"""Collects the data for the diagnosis of a group, from brokers and, through them, from its members."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rmqd.broker_errors import MemberSilentError
from rmqd.client.api.admin import cluster_info, consume_stats
from rmqd.client.api.group import consumer_running_info, subscription_groups
from rmqd.client.api.request_mode import request_modes
from rmqd.client.group_lag import LagReader, TopicLag
from rmqd.client.looks.broker_facts import broker_facts
from rmqd.client.looks.brokers import Brokers
from rmqd.client.looks.groups import connections
from rmqd.client.looks.waiting import first_waiting, newest_retried
from rmqd.diagnosis.facts import Look, MemberFacts, QueueFacts, TopicFacts
from rmqd.diagnosis.judge import judge, needs_second_look
from rmqd.diagnosis.progress import stuck
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import is_retry_topic, retry_topic, topic_of_pop_retry

if TYPE_CHECKING:
    from rmqd.client.instance import ClientInstance
    from rmqd.clock import Clock
    from rmqd.diagnosis.causes import Problem
    from rmqd.diagnosis.finding import Finding
    from rmqd.wire.bodies.stats import Connection, ConsumerConnection

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
    first, errors = await gatherer.look()
    if not needs_second_look(first):
        return Diagnosis(group, tuple(judge(first, of_daemon=of_daemon)), errors)
    await clock.sleep(SECOND_LOOK_SECONDS)
    second, errors = await gatherer.look()
    second = replace(second, heads=await first_waiting(client, second, stuck(first, second)))
    return Diagnosis(group, tuple(judge(first, second, of_daemon)), errors)


class _Gatherer:
    """Takes snapshots of one group, without joining it or pulling under its name."""

    def __init__(self, client: ClientInstance, clock: Clock, group: str, topics: frozenset[str]) -> None:
        self._client = client
        self._clock = clock
        self._group = group
        self._topics = topics

    async def look(self) -> tuple[Look, Mapping[str, RmqdError]]:
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
        look = Look(
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
        return replace(look, retried=await newest_retried(brokers, look)), errors | unread

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
