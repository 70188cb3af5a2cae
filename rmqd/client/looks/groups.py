"""The groups of a cluster, with their members and lag."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rmqd.broker_errors import ConsumerNotOnlineError
from rmqd.client.api.admin import consume_stats
from rmqd.client.api.group import consumer_connection, subscription_groups
from rmqd.errors import RmqdError
from rmqd.wire.topics import dlq_topic, is_system_group

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Answers, Brokers
    from rmqd.wire.bodies.stats import ConsumerConnection

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


async def connections(brokers: Brokers, group: str, names: Iterable[str] | None = None) -> Answers[ConsumerConnection]:
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
