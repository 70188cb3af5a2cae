"""Queries and changes of groups for the commands: lists, details, consume mode and removal.

One group: its settings, its members and their subscriptions, and the owner of each queue.

The groups of a cluster, with their members and lag.

Whether a group pops or pulls a topic: the setting of each broker of the topic, and changes to it.

Removes a group from a cluster: its settings, its offsets, its retry topics and its dead letters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd.client.api.admin_requests import (
    consume_stats,
    delete_topic,
    forget_topic,
    request_modes,
    set_request_mode,
    topic_config,
    topic_configs,
)
from rmqd.client.api.group_requests import (
    consumer_connection,
    consumer_running_info,
    delete_subscription_group,
    subscription_groups,
)
from rmqd.client.group_lag import LagReader, QueueLag, TopicLag, read_lags
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import ConsumerNotOnlineError, RequestCodeNotSupportedError, TopicNotExistError
from rmqd.wire.bodies.config_bodies import SetMessageRequestModeRequestBody
from rmqd.wire.command import version_name
from rmqd.wire.receipt_handle import ANY_QUEUE
from rmqd.wire.topics import dlq_topic, is_system_group, retry_topic

if TYPE_CHECKING:
    from rmqd.operate.queries.message_queries import BrokerResponses, Brokers
    from rmqd.runtime.clock import Clock
    from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
    from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo
    from rmqd.wire.bodies.stats_bodies import Connection, ConsumerConnection
    from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One member, as brokers see it. `queues` is the number of queues that it owns; None if it does not answer."""

    client_id: str
    address: str
    language: str
    version: str
    queues: int | None


@dataclass(frozen=True, slots=True)
class OwnedQueue(QueueLag):
    """The group's lag in one queue, and the member that owns the queue; "" if no member reports owning it."""

    topic: str
    owner: str


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The group's settings on one broker. `modes` are the topics with a pull or pop setting."""

    consume_enable: bool
    consume_broadcast_enable: bool
    consume_message_orderly: bool
    retry_queue_nums: int
    retry_max_times: int
    modes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class GroupDetail:
    """One group. Without members, `consume_type` and `message_model` are None, and `subscriptions` is empty."""

    group: str
    consume_type: str | None
    message_model: str | None
    members: tuple[GroupMember, ...]
    subscriptions: Mapping[str, str]
    """Tag expressions or SQL conditions, by topic."""
    queues: tuple[OwnedQueue, ...]
    brokers: Mapping[str, GroupSettings]


async def show_group(brokers: Brokers, clock: Clock, group: str) -> tuple[GroupDetail, dict[str, RmqdError]]:
    """Return one group, and the failed queries. Raises RmqdError if no reachable broker knows the group."""
    remoting = brokers.client.remoting
    tables, known, (lags, unread) = await asyncio.gather(
        brokers.ask(lambda address: subscription_groups(remoting, address)),
        connections(brokers, group),
        read_lags(LagReader(brokers.client, clock), {group: None}),
    )
    with_settings = {name: table[group] for name, table in tables.by_broker.items() if group in table}
    if not with_settings and not known.by_broker and not lags:
        error = next(iter((*tables.errors.values(), *known.errors.values())), None)
        raise error or RmqdError(f"no broker knows group {group}; run `rmqd groups list` to see all")
    near = {one.client_id: name for name, connection in known.by_broker.items() for one in connection.connection_set}
    infos = await running_infos(brokers, group, near)
    modes = await brokers.ask(lambda address: request_modes(remoting, address), with_settings)
    errors: dict[str, RmqdError] = {**tables.errors, **known.errors}
    errors |= {where: error for where, error in unread.items() if lags or where != group}
    errors |= {name: why for name, why in modes.errors.items() if not isinstance(why, RequestCodeNotSupportedError)}
    set_modes = {
        name: {topic: one.mode.lower() for (topic, whose), one in table.items() if whose == group}
        for name, table in modes.by_broker.items()
    }
    any_known = next(iter(known.by_broker.values()), None)
    detail = GroupDetail(
        group,
        None if any_known is None else consume_type(any_known),
        None if any_known is None else message_model(any_known),
        tuple(_members(known.by_broker.values(), infos)),
        {} if any_known is None else {topic: one.sub_string for topic, one in any_known.subscription_table.items()},
        tuple(_owned(lags, infos)),
        {name: _settings(config, set_modes.get(name, {})) for name, config in with_settings.items()},
    )
    return detail, errors


async def running_infos(brokers: Brokers, group: str, near: Mapping[str, str]) -> dict[str, ConsumerRunningInfo]:
    """Return the running info of each member that answers. `near` names a connected broker for each member."""
    remoting = brokers.client.remoting

    async def ask(client_id: str, name: str) -> ConsumerRunningInfo | None:
        asked = await brokers.ask(lambda address: consumer_running_info(remoting, address, group, client_id), [name])
        return asked.by_broker.get(name)

    answers = await asyncio.gather(*(ask(client_id, name) for client_id, name in near.items()))
    return {client_id: info for client_id, info in zip(near, answers, strict=True) if info is not None}


def _members(known: Iterable[ConsumerConnection], infos: Mapping[str, ConsumerRunningInfo]) -> Iterable[GroupMember]:
    by_id: dict[str, Connection] = {}
    for connection in known:
        by_id |= {one.client_id: one for one in connection.connection_set}
    for client_id, one in sorted(by_id.items()):
        info = infos.get(client_id)
        queues = None if info is None else len(info.mq_table) + len(info.mq_pop_table)
        yield GroupMember(client_id, one.client_addr, one.language, version_name(one.version), queues)


def _owned(lags: Iterable[TopicLag], infos: Mapping[str, ConsumerRunningInfo]) -> Iterable[OwnedQueue]:
    owners: dict[tuple[str, str, int], list[str]] = {}
    for client_id, info in infos.items():
        for queue in (*info.mq_table, *info.mq_pop_table):
            owners.setdefault(_place(queue), []).append(client_id)
    for lag in lags:
        for one in lag.queues:
            at = lag.topic, one.broker
            ids = sorted({*owners.get((*at, one.queue), ()), *owners.get((*at, ANY_QUEUE), ())})
            place = one.broker, one.queue, one.committed, one.min, one.max, one.lag, one.lag_seconds
            yield OwnedQueue(*place, topic=lag.topic, owner=", ".join(ids))


def _place(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


def _settings(config: SubscriptionGroupConfig, modes: Mapping[str, str]) -> GroupSettings:
    return GroupSettings(
        config.consume_enable,
        config.consume_broadcast_enable,
        config.consume_message_orderly,
        config.retry_queue_nums,
        config.retry_max_times,
        modes,
    )


_TYPES = {"CONSUME_ACTIVELY": "pull", "CONSUME_PASSIVELY": "push", "CONSUME_POP": "pop"}


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One group. `consume_type` and `message_model` are its members' settings; None without members.

    `lag` is the number of waiting messages in all its queues, including its retry topics. `rate` is the number of
    messages that its members finish per second.
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
    """Return the groups by name, and the failed queries. A `namespace` selects its own groups."""
    remoting = brokers.client.remoting
    tables = await brokers.ask(lambda address: subscription_groups(remoting, address))
    where: dict[str, list[str]] = {}
    for broker, table in tables.by_broker.items():
        for group in table:
            if group.startswith(f"{namespace}%" if namespace else "") and (with_system or not is_system_group(group)):
                where.setdefault(group, []).append(broker)
    asked = await asyncio.gather(*(_summary(brokers, group, where[group]) for group in sorted(where)))
    errors = {**tables.errors, **{at: error for _, failed in asked for at, error in failed.items()}}
    return [summary for summary, _ in asked], errors


async def connections(
    brokers: Brokers, group: str, names: Iterable[str] | None = None
) -> BrokerResponses[ConsumerConnection]:
    """Return each broker's information on the group's members. Brokers without members of the group are omitted."""
    remoting = brokers.client.remoting
    found = await brokers.ask(lambda address: consumer_connection(remoting, address, group), names)
    errors = {name: error for name, error in found.errors.items() if not isinstance(error, ConsumerNotOnlineError)}
    return type(found)(found.by_broker, errors)


async def is_known(brokers: Brokers, group: str) -> bool:
    """Return whether a broker has the group. Raises RmqdError if no broker has it, and one does not answer."""
    remoting = brokers.client.remoting
    tables = await brokers.ask(lambda address: subscription_groups(remoting, address))
    if any(group in table for table in tables.by_broker.values()):
        return True
    for error in tables.errors.values():
        raise error
    return False


def consume_type(connection: ConsumerConnection) -> str | None:
    """Return how the members of a group consume: push, pull or pop."""
    told = connection.consume_type
    return _TYPES.get(told, told) if told else None


def message_model(connection: ConsumerConnection) -> str | None:
    """Return the members' message model: clustering or broadcasting."""
    return connection.message_model.lower() if connection.message_model else None


async def _summary(brokers: Brokers, group: str, names: list[str]) -> tuple[GroupSummary, dict[str, RmqdError]]:
    remoting = brokers.client.remoting
    known, places = await asyncio.gather(
        connections(brokers, group, names),
        brokers.ask(lambda address: consume_stats(remoting, address, group), names),
    )
    any_known = next(iter(known.by_broker.values()), None)
    members = {one.client_id for connection in known.by_broker.values() for one in connection.connection_set}
    stats = places.by_broker.values()
    summary = GroupSummary(
        group,
        len(members),
        None if any_known is None else consume_type(any_known),
        None if any_known is None else message_model(any_known),
        sum(place.lag for one in stats for queue, place in one.offset_table.items() if queue.topic != dlq_topic(group)),
        round(sum(one.consume_tps for one in stats), 3),
        tuple(names),
    )
    return summary, {f"{group} on {name}": error for name, error in {**known.errors, **places.errors}.items()}


@dataclass(frozen=True, slots=True)
class ModeChange:
    """A broker's setting for a group and a topic, before and after.

    On a broker without a setting, groups pull.
    """

    broker: str
    now: SetMessageRequestModeRequestBody
    then: SetMessageRequestModeRequestBody

    @property
    def is_due(self) -> bool:
        """Whether the settings differ."""
        return self.now != self.then


async def plan_mode(brokers: Brokers, wanted: SetMessageRequestModeRequestBody) -> list[ModeChange]:
    """Return the change on each broker that has the topic. Raises RmqdError if a broker does not answer."""
    remoting = brokers.client.remoting
    topics = await brokers.ask(lambda address: topic_config(remoting, address, wanted.topic))
    for error in topics.errors.values():
        if not isinstance(error, TopicNotExistError):
            raise error
    if not topics.by_broker:
        raise RmqdError(f"no broker has topic {wanted.topic}; run `rmqd topics list` to see all")
    modes = await brokers.ask(lambda address: request_modes(remoting, address), topics.by_broker)
    for error in modes.errors.values():
        raise error
    key = wanted.topic, wanted.consumer_group
    never_set = SetMessageRequestModeRequestBody(*key)
    return [ModeChange(name, table.get(key, never_set), wanted) for name, table in modes.by_broker.items()]


async def carry_out(brokers: Brokers, changes: Sequence[ModeChange]) -> Mapping[str, RmqdError]:
    """Apply the due changes. Returns the errors by broker."""
    due = {change.broker: change.then for change in changes if change.is_due}

    async def change_one(address: str) -> None:
        await set_request_mode(brokers.client.remoting, address, due[brokers.names[address]])

    return (await brokers.ask(change_one, due)).errors


async def remove_group(brokers: Brokers, group: str) -> dict[str, RmqdError]:
    """Remove a group without members from all brokers and name servers. Returns the remains and errors by broker."""
    remoting, topics = brokers.client.remoting, (retry_topic(group), dlq_topic(group))

    async def remove(address: str) -> None:
        await delete_subscription_group(remoting, address, group)
        for topic in topics:
            await delete_topic(remoting, address, topic)

    removed = await brokers.ask(remove)
    for server in brokers.client.name_servers.addresses:
        try:
            await asyncio.gather(*(forget_topic(remoting, server, topic) for topic in topics))
        except RmqdError:
            continue  # the name server removes the topic at the brokers' next registration
    return {**removed.errors, **await _left(brokers, group, topics)}


async def _left(brokers: Brokers, group: str, topics: tuple[str, ...]) -> dict[str, RmqdError]:
    """Return errors for remains of the group on brokers, and the failed queries."""
    remoting = brokers.client.remoting
    groups, configs = await asyncio.gather(
        brokers.ask(lambda address: subscription_groups(remoting, address)),
        brokers.ask(lambda address: topic_configs(remoting, address)),
    )
    found = {name: [group] if group in table else [] for name, table in groups.by_broker.items()}
    for name, table in configs.by_broker.items():
        found.setdefault(name, []).extend(topic for topic in topics if topic in table)
    errors = {name: RmqdError(f"still has {', '.join(left)}") for name, left in found.items() if left}
    return {**groups.errors, **configs.errors, **errors}
