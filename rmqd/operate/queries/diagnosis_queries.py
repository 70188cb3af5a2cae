"""Collects the snapshots for the diagnosis of a group, from brokers and, through them, from the members."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rmqd.client.api.admin_requests import broker_config, broker_runtime_info, consume_stats, topic_stats
from rmqd.client.api.pull_requests import read_records
from rmqd.client.brokers import BrokerResponses, Brokers
from rmqd.client.group_reader import GroupReader, MemberReport, connections_by_member
from rmqd.client.instance import ClientInstance
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.route_table import RouteTable
from rmqd.consumer.health.causes import Problem
from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.operate.diagnosis.diagnosis_facts import BrokerFacts, DiagnosisSnapshot, Finding, TopicFacts
from rmqd.operate.diagnosis.judge import judge, needs_second_snapshot
from rmqd.operate.diagnosis.progress_findings import late_messages, stalled_queues
from rmqd.operate.queries.message_queries import FoundMessage, decoded
from rmqd.wire.bodies.route_data import MASTER_ID, ClusterInfo
from rmqd.wire.bodies.stats_bodies import ConsumerConnection
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import SHARDING_KEY
from rmqd.wire.topics import is_retry_topic, retry_topic, topic_of_pop_retry

_RUNTIME: Final = re.compile(r"\[ (\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds \]")
_MAX_DISK: Final = 0.90  # the maximum in Java: CleanCommitLogService limits diskSpaceWarningLevelRatio


async def broker_facts(brokers: Brokers, info: ClusterInfo) -> dict[str, BrokerFacts]:
    """Return facts about brokers by name. A refused value is None. `silence` is set if a broker answers no query."""
    clock = brokers.client.clock

    async def figures(remoting: RemotingClient, address: str) -> tuple[float, Mapping[str, str]]:
        asked_at = clock.wall()
        told = await broker_runtime_info(remoting, address)
        return (asked_at + clock.wall()) / 2, told

    settings, runtime = await asyncio.gather(brokers.request_masters(broker_config), brokers.request_masters(figures))
    return {
        name: _facts(name, dict(sorted(broker.broker_addrs.items())), settings, runtime)
        for name, broker in sorted(info.broker_addr_table.items())
    }


def _facts(
    name: str,
    replicas: Mapping[int, str],
    settings: BrokerResponses[str, dict[str, str]],
    runtime: BrokerResponses[str, tuple[float, Mapping[str, str]]],
) -> BrokerFacts:
    values = settings.found.get(name, {})
    at, figures = runtime.found.get(name, (0.0, {}))
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
    """Return `disk_used` and `disk_limit` of BrokerFacts; empty if the broker does not report both."""
    limit, used = settings.get("diskSpaceWarningLevelRatio", ""), figures.get("commitLogDiskRatio", "")
    if not limit.isdecimal():  # rmqd's embedded broker has no limit, because it stores messages in memory
        return {}
    try:
        return {"disk_used": float(used), "disk_limit": min(int(limit) / 100, _MAX_DISK)}
    except ValueError:
        return {}


def _clock_ahead(at: float, figures: Mapping[str, str]) -> float | None:
    """Return by how many seconds a broker's clock (start time plus runtime) is ahead of `at`; None if unknown."""
    begun, runs = figures.get("bootTimestamp", ""), _RUNTIME.fullmatch(figures.get("runtime", ""))
    if not begun.isdecimal() or runs is None:
        return None
    days, hours, minutes, seconds = map(int, runs.groups())
    running_seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds + 0.5
    return int(begun) / 1000 + running_seconds - at


MAX_HEADS: Final = 8
MAX_SAMPLE: Final = 256
MAX_RETRIED: Final = 32


async def first_waiting(
    client: ClientInstance, snapshot: DiagnosisSnapshot, queues: Iterable[MessageQueue]
) -> dict[MessageQueue, FoundMessage]:
    """Return the first waiting message of the first MAX_HEADS queues, without messages that cannot be read."""
    asked = list(queues)[:MAX_HEADS]
    found = await asyncio.gather(*(_waiting(client, queue, snapshot.group_offset(queue) or 0, 1) for queue in asked))
    return {queue: messages[0] for queue, messages in zip(asked, found, strict=True) if messages}


async def _sample(client: ClientInstance, queue: MessageQueue, offset: int) -> tuple[str, ...]:
    """Return the sharding key, else the keys, of the first waiting messages. Producers choose queues by these keys."""
    messages = await _waiting(client, queue, offset, MAX_SAMPLE)
    return tuple(one.properties.get(SHARDING_KEY) or one.keys or "(no key)" for one in messages)


async def _waiting(client: ClientInstance, queue: MessageQueue, offset: int, most: int) -> list[FoundMessage]:
    try:
        part = await read_records(client.remoting, client.routes.address_for(queue), queue, offset, most)
        return list(decoded(part.records, queue.topic, queue.broker_name))
    except RmqdError:
        return []


async def newest_retried(brokers: Brokers, snapshot: DiagnosisSnapshot) -> tuple[FoundMessage, ...]:
    """Return the newest messages of the group's retry topic; empty unless a member reports recent failures."""
    if not snapshot.rates[1]:
        return ()
    topic = retry_topic(snapshot.group)

    async def question(remoting: RemotingClient, address: str) -> list[FoundMessage]:
        found: list[FoundMessage] = []
        for queue, ends in (await topic_stats(remoting, address, topic)).offset_table.items():
            low = max(ends.min_offset, ends.max_offset - MAX_RETRIED)
            part = await read_records(remoting, address, queue, low, MAX_RETRIED)
            found += decoded(part.records, topic, queue.broker_name)
        return found

    answers = await brokers.request_masters(question)
    return tuple(one for messages in answers.found.values() for one in messages)


SECOND_LOOK_SECONDS: Final = 7.0
"""The time between the two snapshots. A hand-over takes at most 5 s, and members commit every 5 s."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The problems of a group, the likeliest first, and the errors of failed queries."""

    group: str
    problems: tuple[Problem, ...]
    errors: Mapping[str, RmqdError]
    catching_up: int = 0
    """How many messages wait in queues that catch up within five minutes."""


async def diagnose(
    client: ClientInstance, group: str, topics: Iterable[str] = (), of_daemon: Iterable[Finding] = ()
) -> Diagnosis:
    """Diagnose a group. If one snapshot is not enough, take a second one after seven seconds.

    `topics` are added to the subscriptions of the members. `of_daemon` are the findings of the group's daemon. Raises
    RemotingError if no name server responds.
    """
    reader, configured = GroupReader(Brokers(client), group), frozenset(topics)
    first, errors = await _snapshot(reader, configured)
    if not needs_second_snapshot(first):
        return Diagnosis(group, tuple(judge(first, of_daemon=of_daemon)), errors)
    await client.clock.sleep(SECOND_LOOK_SECONDS)
    second, errors = await _snapshot(reader, configured)
    second = replace(
        second,
        heads=await first_waiting(client, second, stalled_queues(first, second)),
        samples={queue: await _sample(client, queue, second.group_offset(queue) or 0) for queue in second.skewed()},
    )
    return Diagnosis(group, tuple(judge(first, second, of_daemon)), errors, late_messages(first, second))


async def _snapshot(
    reader: GroupReader, configured: frozenset[str]
) -> tuple[DiagnosisSnapshot, Mapping[str, RmqdError]]:
    """Return a snapshot, and the errors of failed queries. The snapshot, not the errors, reports silent brokers."""
    brokers, client = reader.brokers, reader.brokers.client
    info = await brokers.load_cluster_info()
    facts, settings, known, modes = await asyncio.gather(
        broker_facts(brokers, info), reader.settings(), reader.connections(), reader.modes()
    )
    errors = {name: why for name, why in {**settings.errors, **known.errors}.items() if not facts[name].silence}
    views = known.found
    members = await reader.members(views)
    # a member that left during the queries must not count
    if any(member.silence_reason for member in members.values()):
        views = (await reader.connections()).found
        here = connections_by_member(views)
        members = {client_id: one for client_id, one in members.items() if client_id in here}
    topics = await _topic_facts(client.routes, await _subscribed(reader, configured, views, members))
    silent = {name for name, one in facts.items() if one.silence}
    names = [one.topic for one in topics.values() if one.queues and not silent & {q.broker_name for q in one.queues}]
    lags, unread = await reader.lags_by_topic(names if silent else [*names, retry_topic(reader.group)])
    snapshot = DiagnosisSnapshot(
        group=reader.group,
        at=client.clock.wall(),
        name_servers=", ".join(client.name_servers.addresses),
        brokers=facts,
        settings={name: config for name, config in settings.found.items() if config is not None},
        views=views,
        topics=topics,
        members=members,
        queues={MessageQueue(lag.topic, one.broker, one.queue): one for lag in lags.values() for one in lag.queues},
        modes={name: {topic: one.mode for topic, one in table.items()} for name, table in modes.found.items()},
    )
    return replace(snapshot, retried=await newest_retried(brokers, snapshot)), errors | unread


async def _subscribed(
    reader: GroupReader,
    configured: frozenset[str],
    views: Mapping[str, ConsumerConnection],
    members: Mapping[str, MemberReport],
) -> list[str]:
    """Return configured and subscribed topics without retry topics; without members, also topics with offsets."""
    names = {*configured, *(topic for view in views.values() for topic in view.subscription_table)}
    names |= {topic for member in members.values() for topic in member.subscriptions or ()}
    if not views:
        stats = await reader.brokers.request_masters(consume_stats, reader.group)
        names |= {queue.topic for one in stats.found.values() for queue in one.offset_table}
    return sorted(one for one in names if not is_retry_topic(one) and topic_of_pop_retry(reader.group, one) is None)


async def _topic_facts(routes: RouteTable, names: Iterable[str]) -> dict[str, TopicFacts]:
    async def ask(topic: str) -> TopicFacts:
        try:
            route = await routes.refresh(topic)
        except RouteNotFoundError:
            return TopicFacts(topic=topic, missing=True)
        except RmqdError as error:
            return TopicFacts(topic=topic, error=str(error))
        return TopicFacts(topic=topic, route=route, queues=tuple(routes.queues(topic)))

    return {one.topic: one for one in await asyncio.gather(*map(ask, names))}
