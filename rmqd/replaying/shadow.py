"""The shadow group on the brokers: created at the windows' starts, queried, and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rmqd.client.api.group import get_consumer_list, subscription_groups, update_subscription_group
from rmqd.client.api.offset import query_consumer_offset, update_consumer_offset
from rmqd.client.looks.brokers import Brokers
from rmqd.client.looks.removal import remove_group
from rmqd.client.looks.windows import between, queue_address
from rmqd.errors import RmqdError
from rmqd.wire.bodies.settings import SubscriptionGroupConfig

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmqd.client.instance import ClientInstance
    from rmqd.client.looks.windows import Window
    from rmqd.replaying.plan import ReplayPlan

GONE_SECONDS: Final = 10.0  # how soon brokers notice that a process was killed
AGAIN_SECONDS: Final = 0.5


async def windows_of(client: ClientInstance, topics: Iterable[str], from_ms: int, to_ms: int) -> tuple[Window, ...]:
    """Return the windows of messages that some topics stored within a time. Raises RmqdError."""
    parts = await asyncio.gather(*(between(client, topic, from_ms, to_ms) for topic in topics))
    return tuple(window for part in parts for window in part)


async def make(client: ClientInstance, plan: ReplayPlan) -> None:
    """Create the shadow group if it is missing, with its group's settings, and commit the windows' starts as its
    offsets.

    Raises RmqdError.
    """
    remoting, brokers = client.remoting, await Brokers.look_up(client)
    await learn_routes(client, plan)

    async def make_at(address: str) -> None:
        known = (await subscription_groups(remoting, address)).get(plan.group)
        settings = known or SubscriptionGroupConfig(group_name=plan.group)
        await update_subscription_group(
            remoting, address, replace(settings, group_name=plan.shadow, consume_enable=True, attributes={})
        )

    _raise_one((await brokers.ask(make_at)).errors)
    for window in plan.windows:
        address = queue_address(client, window.queue)
        await update_consumer_offset(remoting, address, plan.shadow, window.queue, window.start)


async def handled(client: ClientInstance, plan: ReplayPlan) -> int:
    """Return how many messages of the windows the shadow group has passed, by its offsets. Raises RmqdError."""
    await learn_routes(client, plan)

    async def passed(window: Window) -> int:
        address = queue_address(client, window.queue)
        committed = await query_consumer_offset(client.remoting, address, plan.shadow, window.queue)
        return 0 if committed is None else min(max(committed - window.start, 0), window.size)

    return sum(await asyncio.gather(*(passed(window) for window in plan.windows)))


async def refuse_second_run(client: ClientInstance, plan: ReplayPlan) -> None:
    """Raise RmqdError if the shadow group has a member, because then the replay is already running."""
    brokers, waited = await Brokers.look_up(client), 0.0
    while members := await _members(brokers, plan.shadow):
        if waited >= GONE_SECONDS:
            raise RmqdError(f"this replay is already running, as client {', '.join(sorted(members))} of {plan.shadow}")
        await asyncio.sleep(AGAIN_SECONDS)
        waited += AGAIN_SECONDS


async def remove(client: ClientInstance, plan: ReplayPlan) -> Mapping[str, RmqdError]:
    """Remove the shadow group from all brokers. Returns the errors by broker; it still exists there."""
    return await remove_group(await Brokers.look_up(client), plan.shadow)


async def learn_routes(client: ClientInstance, plan: ReplayPlan) -> None:
    """Look up the routes of the windows' topics. Raises RmqdError."""
    for topic in {window.queue.topic for window in plan.windows}:
        await client.routes.lookup(topic)


async def _members(brokers: Brokers, group: str) -> set[str]:
    asked = await brokers.ask(lambda address: get_consumer_list(brokers.client.remoting, address, group))
    return {client_id for ids in asked.by_broker.values() for client_id in ids}


def _raise_one(errors: Mapping[str, RmqdError]) -> None:
    for error in errors.values():
        raise error
