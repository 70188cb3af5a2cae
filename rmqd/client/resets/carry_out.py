"""Moves a group: sends the resets, and waits until the members have obeyed, for a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from rmqd.client.resets.obedience import has_obeyed, is_stored
from rmqd.client.resets.places import PlaceReader
from rmqd.client.resets.ways import WayOf, push_all, reset_one, store_one

if TYPE_CHECKING:
    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.resets.places import GroupPlaces, QueuePlace
    from rmqd.client.resets.plan import PlannedMove, ResetPlan
    from rmqd.errors import RmqdError
    from rmqd.wire.message_queue import MessageQueue

LOOK_SECONDS: Final = 0.2

State = Literal["moved", "stored", "not_obeyed", "failed", "unchanged"]


@dataclass(frozen=True, slots=True)
class MovedQueue:
    """What became of one queue.

    `moved`: the member that has it goes on from the target. `stored`: the broker has the target, and nobody has the
    queue, or it is popped. `not_obeyed`: not so within the time; `now` is what was seen last. `failed`: the broker
    refused, or did not answer. `unchanged`: it was there already.
    """

    move: PlannedMove
    state: State
    now: QueuePlace
    error: str = ""


@dataclass(frozen=True, slots=True)
class ResetOutcome:
    """What became of a plan. `members` are those that read the topic, `silent` those of them that say nothing."""

    queues: tuple[MovedQueue, ...]
    errors: Mapping[str, RmqdError]
    members: frozenset[str]
    silent: frozenset[str]

    @property
    def is_whole(self) -> bool:
        """Whether every queue is where it was sent."""
        return not self.errors and all(one.state not in ("not_obeyed", "failed") for one in self.queues)


async def carry_out(
    brokers: Brokers, plan: ResetPlan, wait_seconds: float, *, sent: Callable[[], None] = lambda: None
) -> ResetOutcome:
    """Do what a plan says that was made just now. `sent` is called when the brokers were asked, before the wait."""
    due = plan.due
    targets, errors = await _send(brokers, plan)
    sent()
    watch = _Watch(brokers, plan, targets, wait_seconds)
    await watch.run()
    result = []
    for move in plan.moves:
        queue, place = move.queue, move.place
        if queue in targets:
            result.append(MovedQueue(move, watch.states.get(queue, "not_obeyed"), watch.now.get(queue, place)))
        elif move in due:
            why = errors.get(queue) or plan.errors.get(queue.broker_name)
            result.append(MovedQueue(move, "failed", place, str(why or "the broker did not say that it was moved")))
        else:
            result.append(MovedQueue(move, "unchanged", place))
    failed = {queue.broker_name: error for queue, error in errors.items()}
    return ResetOutcome(tuple(result), {**plan.errors, **failed}, watch.members, watch.silent)


async def _send(brokers: Brokers, plan: ResetPlan) -> tuple[dict[MessageQueue, int], dict[MessageQueue, RmqdError]]:
    """Send the resets. Returns where each queue was sent, and why some were not."""
    remoting, group = brokers.client.remoting, plan.group
    singly: list[MessageQueue] = []
    at_once: dict[str, list[PlannedMove]] = {}
    by_queue = {move.queue: move for move in plan.due}
    for move in plan.due:
        if plan.ways[move.queue.broker_name] is WayOf.PUSHED and plan.places.members:
            at_once.setdefault(move.queue.broker_name, []).append(move)
        else:
            singly.append(move.queue)

    async def send_one(address: str, queue: MessageQueue) -> dict[MessageQueue, int]:
        send = reset_one if plan.ways[queue.broker_name] is WayOf.PULLED else store_one
        return await send(remoting, address, group, queue, by_queue[queue].target)

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


class _Watch:
    """Looks again and again at queues that were sent somewhere, until each is there or the time is over."""

    def __init__(
        self, brokers: Brokers, plan: ResetPlan, targets: Mapping[MessageQueue, int], wait_seconds: float
    ) -> None:
        self.states: dict[MessageQueue, State] = {}
        self.now: dict[MessageQueue, QueuePlace] = {}
        self.members = plan.places.members
        self.silent = plan.places.silent
        self._before = {move.queue: move.place for move in plan.moves}
        self._targets = targets
        self._reader = PlaceReader(brokers, plan.group, plan.topic)
        self._wait_seconds = wait_seconds
        self._clock = brokers.client.clock

    async def run(self) -> None:
        """Look until all are there, or for the time."""
        clock = self._clock
        deadline = clock.monotonic() + self._wait_seconds
        while open_queues := [queue for queue in self._targets if queue not in self.states]:
            seen = await self._reader.look(open_queues)
            self.members, self.silent = seen.members, seen.silent
            self.now.update(seen.places)
            is_last = clock.monotonic() >= deadline
            for queue, place in seen.places.items():
                state = self._state(queue, place, seen, is_last=is_last)
                if state is not None:
                    self.states[queue] = state
            if is_last:
                return
            await clock.sleep(LOOK_SECONDS)

    def _state(self, queue: MessageQueue, now: QueuePlace, seen: GroupPlaces, *, is_last: bool) -> State | None:
        target, before = self._targets[queue], self._before[queue]
        if now.held is None and (now.is_popped or not seen.members):
            return "stored" if is_stored(target, now) else None
        if has_obeyed(target, before, now):
            return "moved"
        # members that all say what they have, and nobody has this one: whoever takes it begins there
        is_orphan = not now.owner and not seen.silent
        return "stored" if is_last and is_orphan and now.committed == target else None
