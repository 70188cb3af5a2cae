"""Applies changed options to a running group without leaving the group.

A broker refuses a pull with a filter that it does not know yet. So a heartbeat sends a changed filter to every broker
before the first pull with it. The broker may answer a pull in flight with the old filter. Such a response is discarded,
and the pull is sent again from the same offset. So each message that matches both filters is handled once.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from rmqd.consumer.announcing import announce
from rmqd.consumer.assembly import subscriptions_of
from rmqd.consumer.context import GroupContext
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.rebalance.rebalance import Rebalance
from rmqd.wire.bodies.heartbeat import SubscriptionData

log = structlog.get_logger(__name__)


async def change_while_running(context: GroupContext, rebalance: Rebalance, options: ConsumerOptions) -> None:
    """Put `options`, which have the same topics, in force. If it raises InvalidNameError, nothing has changed."""
    filters = _changed_filters(context, options)
    if filters:
        try:
            await announce(context, filters)
        except BaseException:
            _withdraw(context, filters)
            raise
    context.subscriptions.update(filters)
    context.options = options
    rebalance.divide_thresholds()
    context.rate_limit.change(options.pull_rate_limit)
    context.service.change(options)
    if context.circuit is not None:
        context.circuit.change(options.circuit)
    context.revision += 1
    let_go = sum(assigned.take_over_options() for assigned in rebalance.assigned.values())
    filters_now = {topic: data.sub_string for topic, data in filters.items()}
    log.info(
        "group.updated",
        filters=filters_now,
        let_go=let_go,
        pull_rate_limit=options.pull_rate_limit,
        concurrency=options.concurrency,
    )


def _withdraw(context: GroupContext, filters: Mapping[str, SubscriptionData]) -> None:
    """After a failed change, send the old filters with newer versions, because brokers may know the new filters."""
    newest = max(data.sub_version for data in filters.values())
    before = subscriptions_of(context.options, newest + 1)
    context.subscriptions.update({topic: before[topic] for topic in filters})
    context.revision += 1
    context.client.heartbeat.beat_soon()


def _changed_filters(context: GroupContext, options: ConsumerOptions) -> dict[str, SubscriptionData]:
    """Return the filters that differ from those in force, with higher versions, because brokers keep the highest."""
    before = context.options.subscriptions
    now_ms = int(context.clock.wall() * 1000)
    last = max(context.subscriptions[topic].sub_version for topic in options.subscriptions)
    wanted = subscriptions_of(options, max(now_ms, last + 1))
    return {topic: wanted[topic] for topic, filter_now in options.subscriptions.items() if filter_now != before[topic]}
