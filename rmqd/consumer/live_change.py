"""Other options for a group that runs, which it takes over without leaving the group.

A broker refuses a pull by a filter that it does not know yet. So a changed filter is told to every broker by a
heartbeat before the first pull by it. A pull that is under way meanwhile may be answered by the old filter: its answer
is thrown away, the queue's position stays, and it is sent again. So each message that both filters match is handled
once.
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
    """Put `options` in force, which have the same topics. Raises InvalidNameError with nothing changed."""
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
    """Tell brokers the old filters again, with newer versions, where a change is given up that they may know."""
    newest = max(data.sub_version for data in filters.values())
    before = subscriptions_of(context.options, newest + 1)
    context.subscriptions.update({topic: before[topic] for topic in filters})
    context.revision += 1
    context.client.heartbeat.beat_soon()


def _changed_filters(context: GroupContext, options: ConsumerOptions) -> dict[str, SubscriptionData]:
    """The filters that are not those in force, each with a version above its last one: brokers keep the highest."""
    before = context.options.subscriptions
    now_ms = int(context.clock.wall() * 1000)
    last = max(context.subscriptions[topic].sub_version for topic in options.subscriptions)
    wanted = subscriptions_of(options, max(now_ms, last + 1))
    return {topic: wanted[topic] for topic, filter_now in options.subscriptions.items() if filter_now != before[topic]}
