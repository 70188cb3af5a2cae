"""Announces new subscriptions to the brokers, which refuse pulls for a subscription that they do not know."""

from __future__ import annotations

from collections.abc import Mapping

from rmqd.consumer.context import GroupContext
from rmqd.wire.bodies.heartbeat import SubscriptionData


async def announce(context: GroupContext, subscriptions: Mapping[str, SubscriptionData]) -> None:
    """Send new or changed subscriptions, by topic, to every broker. The caller must then apply them at once.

    A broker that does not respond learns the subscriptions from its next heartbeat, and refuses pulls for them until
    then.
    """
    context.announced.update(subscriptions)
    try:
        await context.client.heartbeat.beat()
    finally:
        for topic in subscriptions:
            context.announced.pop(topic, None)
