"""One group: its settings, its members and their subscriptions, and the owner of each queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd.broker_errors import RequestCodeNotSupportedError
from rmqd.client.api.group import consumer_running_info, subscription_groups
from rmqd.client.api.request_mode import request_modes
from rmqd.client.group_lag import LagReader, QueueLag, TopicLag, read_lags
from rmqd.client.looks.groups import connections, consume_type, message_model
from rmqd.errors import RmqdError
from rmqd.wire.pop import ANY_QUEUE
from rmqd.wire.version import version_name

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.clock import Clock
    from rmqd.wire.bodies.running_info import ConsumerRunningInfo
    from rmqd.wire.bodies.settings import SubscriptionGroupConfig
    from rmqd.wire.bodies.stats import Connection, ConsumerConnection
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
