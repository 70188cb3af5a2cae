"""The options of the group."""

from __future__ import annotations

from typing import Final

from rmqd.consumer.consumer_options import ConsumerOptions
from tests.consumer.groups import group_options
from tests.simulation.names import GROUP, LANE, TOPIC
from tests.simulation.plan import Plan

HUNG_SECONDS: Final = 10.0
"""The handler timeout if handlers may hang."""


def options_of(plan: Plan) -> ConsumerOptions:
    """Return the options of each member of a plan's group."""
    return group_options(
        group=GROUP,
        subscriptions=[TOPIC],
        consume_from_where=plan.consume_from_where,
        message_model="broadcasting" if plan.is_broadcasting else "clustering",
        consume_mode=plan.way,
        concurrency=plan.concurrency,
        consume_message_batch_max_size=plan.batch_size,
        consume_timeout_seconds=HUNG_SECONDS if "hang" in plan.troubles else 900.0,
        max_reconsume_times=plan.max_reconsume_times,
        delay_level_when_next_consume=plan.delay_level,
        auto_commit=plan.auto_commit,
        order_by=f"property:{LANE}" if plan.has_lanes else "",
        pull_threshold_for_queue=plan.most_cached,
        shutdown_timeout_seconds=30.0,
        pop_invisible_time_seconds=plan.popping.invisible_seconds,
        pop_batch_nums=plan.popping.batch_nums,
        pop_threshold_for_queue=plan.popping.threshold,
    )
