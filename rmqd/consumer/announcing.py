"""New subscriptions: brokers know them before anything is pulled by them, as they refuse pulls by others."""

from __future__ import annotations

from collections.abc import Mapping

from rmqd.consumer.context import GroupContext
from rmqd.wire.bodies.heartbeat import SubscriptionData


async def announce(context: GroupContext, subscriptions: Mapping[str, SubscriptionData]) -> None:
    """Tell every broker of new or changed subscriptions, by topic, which the caller puts in force at once after it.

    A broker that does not answer learns of them by its next heartbeat, and refuses pulls by them until then.
    """
    context.announced.update(subscriptions)
    try:
        await context.client.heartbeat.beat()
    finally:
        for topic in subscriptions:
            context.announced.pop(topic, None)
