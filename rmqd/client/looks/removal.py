"""Removes a group from a cluster: its settings, its offsets, its retry topics and its dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rmqd.client.api.admin import delete_topic, forget_topic, topic_configs
from rmqd.client.api.group import delete_subscription_group, subscription_groups
from rmqd.errors import RmqdError
from rmqd.wire.topics import dlq_topic, retry_topic

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers


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
            continue  # the brokers' next registration removes it there
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
