"""Resets a group: sends the resets, and waits a limited time until the members have applied them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rmqd.client.resets.watch import Watch
from rmqd.client.resets.ways import WayOf, push_all, reset_one, store_one

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.resets.places import QueuePlace
    from rmqd.client.resets.plan import PlannedMove, ResetPlan
    from rmqd.client.resets.watch import State
    from rmqd.errors import RmqdError
    from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class MovedQueue:
    """The outcome for one queue.

    `moved`: the owner continues at the target. `stored`: the broker has the target, and the queue has no owner, or is
    popped. `not_obeyed`: neither before the timeout; `now` is the last observed place. `failed`: the broker refused, or
    did not answer. `unchanged`: the group was at the target already.
    """

    move: PlannedMove
    state: State
    now: QueuePlace
    error: str = ""


@dataclass(frozen=True, slots=True)
class ResetOutcome:
    """The outcome of a plan. `members` are the topic's readers, `silent` those members without an answer.

    `pushed_by` are the brokers that pushed the reset to the members, and do not store it for other members.
    """

    queues: tuple[MovedQueue, ...]
    errors: Mapping[str, RmqdError]
    members: frozenset[str]
    silent: frozenset[str]
    pushed_by: frozenset[str]

    @property
    def is_whole(self) -> bool:
        """Whether every queue reached its target."""
        return not self.errors and all(one.state not in ("not_obeyed", "failed") for one in self.queues)


async def carry_out(
    brokers: Brokers, plan: ResetPlan, wait_seconds: float, *, sent: Callable[[], None] = lambda: None
) -> ResetOutcome:
    """Apply a plan that was made just now. `sent` is called after the requests to the brokers, before the wait."""
    targets, errors = await _send(brokers, plan)
    sent()
    watch = Watch(brokers, plan, targets, wait_seconds)
    await watch.run()
    failed = {queue.broker_name: error for queue, error in (errors | watch.errors).items()}
    queues = tuple(_moved(move, targets, errors, watch) for move in plan.moves)
    pushed_by = frozenset(broker for broker in plan.ways if _is_pushed(plan, broker))
    return ResetOutcome(queues, {**plan.errors, **failed}, watch.members, watch.silent, pushed_by)


def _is_pushed(plan: ResetPlan, broker: str) -> bool:
    return plan.ways[broker] is WayOf.PUSHED and bool(plan.places.members)


def _moved(
    move: PlannedMove, targets: Mapping[MessageQueue, int], errors: Mapping[MessageQueue, RmqdError], watch: Watch
) -> MovedQueue:
    queue = move.queue
    if queue in targets:
        state, now = watch.states.get(queue, "not_obeyed"), watch.now.get(queue, move.place)
        silence = None if queue in watch.states else watch.errors.get(queue)
        return MovedQueue(replace(move, target=targets[queue]), state, now, str(silence or ""))
    if not move.is_due:
        return MovedQueue(move, "unchanged", move.place)
    return MovedQueue(move, "failed", move.place, str(errors.get(queue, "the broker did not confirm the reset")))


async def _send(brokers: Brokers, plan: ResetPlan) -> tuple[dict[MessageQueue, int], dict[MessageQueue, RmqdError]]:
    """Send the resets. Returns the target of each queue, and the errors of the others."""
    remoting, group = brokers.client.remoting, plan.group
    singly: list[MessageQueue] = []
    at_once: dict[str, list[PlannedMove]] = {}
    by_queue = {move.queue: move for move in plan.due}
    for move in plan.due:
        if _is_pushed(plan, move.queue.broker_name):
            at_once.setdefault(move.queue.broker_name, []).append(move)
        else:
            singly.append(move.queue)

    async def send_one(address: str, queue: MessageQueue) -> dict[MessageQueue, int]:
        target = by_queue[queue].target
        if plan.ways[queue.broker_name] is WayOf.PULLED:
            return await reset_one(remoting, address, group, queue, None if plan.goal.kind == "last" else target)
        return await store_one(remoting, address, group, queue, target)

    async def push(address: str, queue: MessageQueue) -> dict[MessageQueue, int]:
        meant = {move.queue for move in plan.moves}
        of_broker = {one for one in brokers.client.routes.queues(plan.topic) if one.broker_name == queue.broker_name}
        return await push_all(remoting, address, group, plan.topic, plan.goal, is_whole=of_broker <= meant)

    ones, pushes = await asyncio.gather(
        brokers.ask_about(singly, send_one),
        brokers.ask_about([moves[0].queue for moves in at_once.values()], push),
    )
    told = {
        queue: offset for part in (ones, pushes) for table in part.by_queue.values() for queue, offset in table.items()
    }
    refused = {move.queue: error for queue, error in pushes.errors.items() for move in at_once[queue.broker_name]}
    return {queue: told[queue] for queue in by_queue if queue in told}, {**ones.errors, **refused}
