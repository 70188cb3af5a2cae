"""Bugs in the use of slaves, which are behind their master."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.client.routing.route_table import RouteTable
from rmqd.consumer.pull.pull_request import PullRequest
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.nightly.simulation.planted.registry import both, plant, tries
from tests.simulation.plan import Plan
from tests.simulation.slave import BROKER_ID


def has_slaves(plan: Plan) -> bool:
    """Brokers with slaves."""
    return plan.slaves is not None


def checks_offsets(plan: Plan) -> bool:
    """Slaves that return a corrected offset for a pull beyond their ends."""
    return plan.slaves is not None and plan.slaves.checks_offsets


@plant(needs=both(checks_offsets, tries("believe_no_slave")))
def slave_believed(patch: pytest.MonkeyPatch) -> None:
    """The queue end that a slave reports is believed like a master's."""
    right = PullRequest.pull

    async def ask(self: PullRequest, *args: Any) -> RemotingCommand:
        reply = await right(self, *args)
        self.at_master = True
        return reply

    patch.setattr(PullRequest, "pull", ask)


@plant(needs=both(has_slaves, tries("nothing")))
def commits_to_slaves(patch: pytest.MonkeyPatch) -> None:
    """Offsets are stored at a broker's slave, if it has one."""
    right = RouteTable.address_for

    def address(self: RouteTable, queue: MessageQueue) -> str:
        return self.replicas(self.endpoint(queue)).get(BROKER_ID) or right(self, queue)

    patch.setattr(RouteTable, "address_for", address)
