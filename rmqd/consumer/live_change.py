"""Other options for a group that runs: taken over without leaving it.

A changed filter is told to every broker before the first pull by it. Each message that both filters match is handled
once: the position of a queue moves only by answers that count, and a pull that was under way meanwhile is asked anew.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from rmqd.consumer.assembly import subscriptions_of
from rmqd.consumer.context import GroupContext
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.rebalance.rebalance import Rebalance
from rmqd.wire.bodies.heartbeat import SubscriptionData

log = structlog.get_logger(__name__)


async def change_while_running(context: GroupContext, rebalance: Rebalance, options: ConsumerOptions) -> None:
    """Go by `options`, with the same topics. Returns when they hold. Raises InvalidNameError with nothing changed.

    A broker that does not answer learns of a filter by its next heartbeat, and refuses pulls by it until then.
    """
    filters = _changed_filters(context, options)
    if filters:
        context.announced = filters
        try:
            await context.client.heartbeat.beat()
        except BaseException:
            _withdraw(context, filters)
            raise
    context.subscriptions.update(filters)
    context.announced = {}
    context.options = options
    rebalance.divide_thresholds()
    context.rate_limit.change(options.pull_rate_limit)
    context.revision += 1
    let_go = sum(assigned.take_over() for assigned in rebalance.assigned.values())
    filters_now = {topic: data.sub_string for topic, data in filters.items()}
    log.info("group.updated", filters=filters_now, let_go=let_go, pull_rate_limit=options.pull_rate_limit)


def _withdraw(context: GroupContext, filters: Mapping[str, SubscriptionData]) -> None:
    """Nobody waits for the change any more, and brokers may know of it: tell them the old filters, as newer ones."""
    newest = max(data.sub_version for data in filters.values())
    before = subscriptions_of(context.options, newest + 1)
    context.subscriptions.update({topic: before[topic] for topic in filters})
    context.announced = {}
    context.revision += 1
    context.client.heartbeat.beat_soon()


def _changed_filters(context: GroupContext, options: ConsumerOptions) -> dict[str, SubscriptionData]:
    """The filters that are not those in force, each with a version above its last one: brokers keep the highest."""
    before = context.options.subscriptions
    now_ms = int(context.clock.wall() * 1000)
    last = max(context.subscriptions[topic].sub_version for topic in options.subscriptions)
    wanted = subscriptions_of(options, max(now_ms, last + 1))
    return {topic: wanted[topic] for topic, filter_now in options.subscriptions.items() if filter_now != before[topic]}
