"""Bugs in the handling of operators' requests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rmqd.consumer import push_consumer as live_change
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.context import GroupContext
from rmqd.consumer.handling.slots import HandlerSlots
from tests.nightly.simulation.planted.registry import breaks, plant


@plant(needs=breaks("hold"))
def no_resume(patch: pytest.MonkeyPatch) -> None:
    """Handlers are not called again when a group's pause ends."""
    patch.setattr(HandlerSlots, "resume", lambda self: None)


@plant(needs=breaks("filter_otherwise"))
def old_filter_announced(patch: pytest.MonkeyPatch) -> None:
    """A changed filter is neither sent to brokers nor used."""
    right = live_change.change_running_group

    async def change(context: GroupContext, rebalance: Any, options: ConsumerOptions) -> None:
        await right(context, rebalance, replace(options, subscriptions=context.options.subscriptions))

    patch.setattr("rmqd.consumer.push_consumer.change_running_group", change)
