"""Requests about consumer groups for the commands: list, details, pop or pull mode, and removal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rmqd.client.api.admin_requests import (
    consume_stats,
    delete_topic,
    forget_topic,
    set_request_mode,
    topic_config,
    topic_configs,
)
from rmqd.client.api.group_requests import delete_subscription_group, subscription_groups
from rmqd.client.brokers import Brokers
from rmqd.client.group_reader import GroupReader, MemberReport, QueueLag, TopicLag, connections_by_member
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import RequestCodeNotSupportedError, TopicNotExistError
from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.bodies.stats_bodies import ConsumerConnection
from rmqd.wire.command import version_name
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import dlq_topic, is_system_group, retry_topic


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member of a group. If the member does not respond, `queues` (a number) and `subscriptions` are None."""

    client_id: str
    address: str
    language: str
    version: str
    queues: int | None
    subscriptions: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class OwnedQueue(QueueLag):
    """The group's lag in one queue, and the client id of the queue's owner; "" if no member reports owning it."""

    topic: str
    owner: str


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """All details of one group. Without members, `consume_type` and `message_model` are None."""

    group: str
    consume_type: str | None
    message_model: str | None
    members: tuple[GroupMember, ...]
    subscriptions: Mapping[str, str]
    """Tag expressions or SQL conditions by topic, from the last heartbeat at a broker; empty without members."""
    queues: tuple[OwnedQueue, ...]
    brokers: Mapping[str, Mapping[str, Any]]
    """The group's settings by broker name. `modes` has the topics for which pull or pop was set."""


async def show_group(brokers: Brokers, group: str) -> tuple[GroupDetail, dict[str, RmqdError]]:
    """Return a group's details and the errors of failed queries. Raises RmqdError if no reachable broker knows it."""
    reader = GroupReader(brokers, group)
    settings, known, (lags, unread) = await asyncio.gather(reader.settings(), reader.connections(), reader.lags())
    with_settings = {name: config for name, config in settings.found.items() if config is not None}
    if not with_settings and not known.found and not lags:
        error = next(iter((*settings.errors.values(), *known.errors.values())), None)
        raise error or RmqdError(f"no broker knows group {group}; run `rmqd groups list` to see all")
    members = await reader.members(known.found)
    modes = await reader.modes(with_settings)
    errors = {**settings.errors, **known.errors}
    errors |= {where: error for where, error in unread.items() if lags or where != group}
    errors |= {name: why for name, why in modes.errors.items() if not isinstance(why, RequestCodeNotSupportedError)}
    any_known = next(iter(known.found.values()), None)
    detail = GroupDetail(
        group,
        None if any_known is None else consume_type(any_known),
        None if any_known is None else message_model(any_known),
        tuple(map(_member, members.values())),
        {} if any_known is None else _texts(any_known.subscription_table),
        tuple(_owned(lags, members.values())),
        {
            name: asdict(config)
            | {"modes": {topic: one.mode.lower() for topic, one in modes.found.get(name, {}).items()}}
            for name, config in with_settings.items()
        },
    )
    return detail, errors


def _member(member: MemberReport) -> GroupMember:
    one = [*member.connections.values()][-1][-1]
    queues = None if member.info is None else len(member.queues)
    own = None if member.subscriptions is None else _texts(member.subscriptions)
    return GroupMember(member.client_id, one.client_addr, one.language, version_name(one.version), queues, own)


def _texts(subscriptions: Mapping[str, SubscriptionData]) -> dict[str, str]:
    return {topic: one.sub_string for topic, one in subscriptions.items()}


def _owned(lags: Iterable[TopicLag], members: Iterable[MemberReport]) -> Iterable[OwnedQueue]:
    for lag in lags:
        for one in lag.queues:
            queue = MessageQueue(lag.topic, one.broker, one.queue)
            owners = [member.client_id for member in members if member.owns(queue)]
            yield OwnedQueue(**asdict(one), topic=lag.topic, owner=", ".join(owners))


_TYPES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group in a list. `consume_type` and `message_model` are its members' settings; None without members.

    `lag` is the number of waiting messages in all queues, including retry topics. `rate` is the number of messages that
    all members finish per second.
    """

    group: str
    members: int
    consume_type: str | None
    message_model: str | None
    lag: int
    rate: float
    brokers: tuple[str, ...]


async def list_groups(
    brokers: Brokers, *, namespace: str = "", with_system: bool = False
) -> tuple[list[GroupSummary], dict[str, RmqdError]]:
    """Return the groups of a `namespace` (all if empty), sorted by name, and the errors of failed queries."""
    tables = await brokers.request_masters(subscription_groups)
    where: dict[str, list[str]] = {}
    for broker, table in tables.found.items():
        for group in table:
            if group.startswith(f"{namespace}%" if namespace else "") and (with_system or not is_system_group(group)):
                where.setdefault(group, []).append(broker)
    asked = await asyncio.gather(*(_summary(brokers, group, where[group]) for group in sorted(where)))
    errors = {**tables.errors, **{at: error for _, failed in asked for at, error in failed.items()}}
    return [summary for summary, _ in asked], errors


async def is_known(brokers: Brokers, group: str) -> bool:
    """Return whether a broker knows the group. Raises RmqdError if no broker knows it, and a query failed."""
    settings = await GroupReader(brokers, group).settings()
    if any(config is not None for config in settings.found.values()):
        return True
    for error in settings.errors.values():
        raise error
    return False


def consume_type(connection: ConsumerConnection) -> str | None:
    """Return how the members of a group consume: push, pull or pop; None if the broker does not report it."""
    told = connection.consume_type
    return _TYPES.get(told, told) if told else None


def message_model(connection: ConsumerConnection) -> str | None:
    """Return the members' message model, clustering or broadcasting; None if the broker does not report it."""
    return connection.message_model.lower() if connection.message_model else None


async def _summary(brokers: Brokers, group: str, names: list[str]) -> tuple[GroupSummary, dict[str, RmqdError]]:
    known, places = await asyncio.gather(
        GroupReader(brokers, group).connections(names), brokers.request_masters(consume_stats, group, names=names)
    )
    any_known = next(iter(known.found.values()), None)
    stats = places.found.values()
    summary = GroupSummary(
        group,
        len(connections_by_member(known.found)),
        None if any_known is None else consume_type(any_known),
        None if any_known is None else message_model(any_known),
        sum(place.lag for one in stats for queue, place in one.offset_table.items() if queue.topic != dlq_topic(group)),
        round(sum(one.consume_tps for one in stats), 3),
        tuple(names),
    )
    return summary, {f"{group} on {name}": error for name, error in {**known.errors, **places.errors}.items()}


@dataclass(frozen=True, slots=True)
class ModeChange:
    """A broker's pull or pop setting for a group and a topic: `now` before the change, `then` after it.

    A broker without this setting makes the group pull.
    """

    broker: str
    now: SetMessageRequestModeRequestBody
    then: SetMessageRequestModeRequestBody

    @property
    def is_due(self) -> bool:
        return self.now != self.then


async def plan_mode(brokers: Brokers, wanted: SetMessageRequestModeRequestBody) -> list[ModeChange]:
    """Return the change of the setting for each broker that has the topic. Raises RmqdError if a query fails."""
    topics = await brokers.request_masters(topic_config, wanted.topic)
    for error in topics.errors.values():
        if not isinstance(error, TopicNotExistError):
            raise error
    if not topics.found:
        raise RmqdError(f"no broker has topic {wanted.topic}; run `rmqd topics list` to see all")
    modes = await GroupReader(brokers, wanted.consumer_group).modes(topics.found)
    for error in modes.errors.values():
        raise error
    never_set = SetMessageRequestModeRequestBody(wanted.topic, wanted.consumer_group)
    return [ModeChange(name, table.get(wanted.topic, never_set), wanted) for name, table in modes.found.items()]


async def apply_mode_changes(brokers: Brokers, changes: Sequence[ModeChange]) -> Mapping[str, RmqdError]:
    """Apply the changes that are due. Returns the errors by broker name."""
    due = {change.broker: change.then for change in changes if change.is_due}

    async def change_one(remoting: RemotingClient, address: str) -> None:
        await set_request_mode(remoting, address, due[brokers.names[address]])

    return (await brokers.request_masters(change_one, names=due)).errors


async def remove_group(brokers: Brokers, group: str) -> dict[str, RmqdError]:
    """Remove a group without members, with its retry and DLQ topics. Returns errors by broker, also if parts remain."""
    topics = retry_topic(group), dlq_topic(group)

    async def remove(remoting: RemotingClient, address: str) -> None:
        await delete_subscription_group(remoting, address, group)
        for topic in topics:
            await delete_topic(remoting, address, topic)

    removed = await brokers.request_masters(remove)
    for server in brokers.client.name_servers.addresses:
        try:
            await asyncio.gather(*(forget_topic(brokers.client.remoting, server, topic) for topic in topics))
        except RmqdError:
            continue  # this name server will remove the topics at the brokers' next registration
    return {**removed.errors, **await _left(brokers, group, topics)}


async def _left(brokers: Brokers, group: str, topics: tuple[str, ...]) -> dict[str, RmqdError]:
    """Return, by broker name, the errors of failed queries, and an error if parts of the group remain."""
    settings, configs = await asyncio.gather(
        GroupReader(brokers, group).settings(), brokers.request_masters(topic_configs)
    )
    found = {name: [group] if config else [] for name, config in settings.found.items()}
    for name, table in configs.found.items():
        found.setdefault(name, []).extend(topic for topic in topics if topic in table)
    errors = {name: RmqdError(f"still has {', '.join(left)}") for name, left in found.items() if left}
    return {**settings.errors, **configs.errors, **errors}
