"""Bugs in the assignment of queues."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from rmqd.client.heartbeat import Heartbeat
from rmqd.client.instance import ClientInstance
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.rebalance import rebalance
from rmqd.consumer.rebalance.membership import MemberList, MissingBrokerQueues
from rmqd.consumer.rebalance.rebalance import Rebalance
from rmqd.wire.message_queue import MessageQueue
from tests.nightly.simulation.planted.registry import both, breaks, concurrently, plant, tries
from tests.simulation.plan import Plan


def _of_one_broker(plan: Plan) -> bool:
    return len(plan.queues) == 1


def _of_two_brokers(plan: Plan) -> bool:
    return len(plan.queues) > 1


@plant(needs=both(_of_two_brokers, tries("crowd")))
def change_during_a_pass_lost(patch: pytest.MonkeyPatch) -> None:
    """Of two simultaneous changes, the second arrives during the rebalance and is noticed 20 s later."""
    right = Rebalance._pass

    async def one_pass(self: Rebalance, tasks: asyncio.TaskGroup) -> bool:
        balanced = await right(self, tasks)
        self._soon.clear()
        return balanced

    patch.setattr(Rebalance, "_pass", one_pass)


@plant
def queue_that_comes_back_is_lost(patch: pytest.MonkeyPatch) -> None:
    """A queue that is assigned again during its release counts as held for ever, and has no consumer."""

    async def hold(self: Rebalance, assigned: Assignment) -> None:
        await assigned.run()
        self.divide_thresholds()
        self.start_soon()

    patch.setattr(Rebalance, "_hold", hold)


@plant(needs=tries("visit"))
def given_up_queue_not_looked_at_again(patch: pytest.MonkeyPatch) -> None:
    """No rebalance follows a queue's release: if the member must acquire it again, it waits for the next rebalance."""

    async def hold(self: Rebalance, assigned: Assignment) -> None:
        try:
            await assigned.run()
        finally:
            del self.assigned[assigned.message_queue]
            self.divide_thresholds()

    patch.setattr(Rebalance, "_hold", hold)


@plant(needs=tries("join"))
def notices_ignored(patch: pytest.MonkeyPatch) -> None:
    """A broker's notice of a membership change is ignored."""
    patch.setattr(Rebalance, "on_members_changed", lambda self: None)


@plant(needs=tries("join", "crowd"))
def nothing_given_up(patch: pytest.MonkeyPatch) -> None:
    """A member keeps queues that now belong to others."""
    right = Rebalance._change

    def change(self: Rebalance, tasks: Any, topic: str, wanted: Any, held: Any, *, is_popped: bool) -> None:
        right(self, tasks, topic, wanted | held, held, is_popped=is_popped)

    patch.setattr(Rebalance, "_change", change)


@plant(needs=both(_of_two_brokers, breaks("cut", "tear", "half", "partition"), tries("nothing")))
def members_in_any_order(patch: pytest.MonkeyPatch) -> None:
    """Members are used in the order of the broker's list, which differs between members."""
    patch.setattr(rebalance, "sorted_client_ids", lambda client_ids: list(client_ids))


@plant
def retry_queue_nobodys(patch: pytest.MonkeyPatch) -> None:
    """The group's retry topic is assigned only while the group has one member."""
    right = Rebalance._share_of

    async def share_of(self: Rebalance, topic: str, members: list[str] | None) -> Any:
        share = await right(self, topic, members)
        return None if topic.startswith("%RETRY%") and len(members or ()) > 1 else share

    patch.setattr(Rebalance, "_share_of", share_of)


@plant(needs=both(_of_two_brokers, tries("crash")))
def queues_of_an_absent_broker_given_up(patch: pytest.MonkeyPatch) -> None:
    """A queue whose broker has no route loses its owner; the next owner continues at the last written offset."""
    patch.setattr(MissingBrokerQueues, "kept_queues", lambda self, topic, held: frozenset[MessageQueue]())


@plant(needs=both(_of_one_broker, tries("crash")))
def short_lists_believed(patch: pytest.MonkeyPatch) -> None:
    """A restarted broker's list is believed before the members had time to return."""
    patch.setattr(MemberList, "_is_whole", lambda self, address, members: True)


@plant(needs=tries("unlisted"))
def list_without_us_believed(patch: pytest.MonkeyPatch) -> None:
    """A broker whose list lacks this member gets no heartbeat, and its list is used anyway."""
    right, is_whole = MemberList.client_ids_for, MemberList._is_whole

    async def of(self: MemberList, topic: str) -> list[str] | None:
        beat = self._context.client.heartbeat.send_heartbeat_to

        async def nothing(address: str) -> None:
            return None

        self._context.client.heartbeat.send_heartbeat_to = nothing  # type: ignore[method-assign]
        try:
            return await right(self, topic)
        finally:
            self._context.client.heartbeat.send_heartbeat_to = beat  # type: ignore[method-assign]

    def may_lack_us(self: MemberList, address: str, members: list[str]) -> bool:
        return is_whole(self, address, [*members, self._context.client.client_id])

    patch.setattr(MemberList, "client_ids_for", of)
    patch.setattr(MemberList, "_is_whole", may_lack_us)


@plant(needs=tries("leave", "glances"))
def leaves_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """A leaving member does not unregister, and stays in the lists while its process has its connections."""

    async def unregister(self: ClientInstance, address: str, group: str) -> None:
        return None

    patch.setattr(ClientInstance, "_unregister_at", unregister)


@plant(needs=tries("glances"))
def heartbeat_after_the_good_bye(patch: pytest.MonkeyPatch) -> None:
    """A member unregisters before its heartbeat in flight is answered: processed late, the heartbeat brings it back."""

    async def settled(self: Heartbeat, address: str) -> None:
        return None

    patch.setattr(Heartbeat, "wait_for_pending", settled)


@plant(needs=tries("glances"))
def passes_without_pause(patch: pytest.MonkeyPatch) -> None:
    """A member rebalances at every notice, however many arrive at once."""

    async def keep_apart(self: Rebalance, began: float) -> None:
        return None

    patch.setattr(Rebalance, "_keep_apart", keep_apart)


@plant(needs=both(concurrently, tries("part")))
def one_list_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A rebalance without a list of members takes this member for the only one."""
    right = MemberList.client_ids_for

    async def of(self: MemberList, topic: str) -> Collection[str]:
        members = await right(self, topic)
        return [self._context.client.client_id] if members is None else members

    patch.setattr(MemberList, "client_ids_for", of)
