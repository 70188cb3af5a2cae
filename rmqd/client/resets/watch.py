"""Polls queues after a reset until each reaches its target or the time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from rmqd.client.resets.obedience import has_obeyed, is_lost, is_stored
from rmqd.client.resets.places import PlaceReader
from rmqd.client.resets.ways import WayOf, reset_one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rmqd.client.looks.brokers import Brokers
    from rmqd.client.resets.places import GroupPlaces, QueuePlace
    from rmqd.client.resets.plan import ResetPlan
    from rmqd.errors import RmqdError
    from rmqd.wire.message_queue import MessageQueue

POLL_SECONDS: Final = 0.2
LOST_SECONDS: Final = 3.0

State = Literal["moved", "stored", "not_obeyed", "failed", "unchanged"]


class Watch:
    """Watches the queues of one plan.

    A reset that is lost for LOST_SECONDS is sent again. Brokers of 5.x report it once, possibly in the response to a
    pull of a lost connection. The member then continues without it.
    """

    def __init__(
        self, brokers: Brokers, plan: ResetPlan, targets: Mapping[MessageQueue, int], wait_seconds: float
    ) -> None:
        self.states: dict[MessageQueue, State] = {}
        self.now: dict[MessageQueue, QueuePlace] = {}
        self.errors: dict[MessageQueue, RmqdError] = {}
        """The error of a queue's broker in the last poll."""
        self.members = plan.places.members
        self.silent = plan.places.silent
        self._before = {move.queue: move.place for move in plan.moves}
        self._brokers = brokers
        self._plan = plan
        self._targets = targets
        self._reader = PlaceReader(brokers, plan.group, plan.topic)
        self._wait_seconds = wait_seconds
        self._clock = brokers.client.clock
        self._lost_since: dict[MessageQueue, float] = {}

    async def run(self) -> None:
        """Poll until all queues are at their targets, or the time is over."""
        deadline = self._clock.monotonic() + self._wait_seconds
        while open_queues := [queue for queue in self._targets if queue not in self.states]:
            seen = await self._reader.look(open_queues)
            self.members, self.silent, self.errors = seen.members, seen.silent, dict(seen.errors)
            self.now.update(seen.places)
            is_last = self._clock.monotonic() >= deadline
            for queue, place in seen.places.items():
                state = self._state(queue, place, seen, is_last=is_last)
                if state is not None:
                    self.states[queue] = state
            if is_last:
                return
            await self._send_again([queue for queue in open_queues if self._is_lost(queue)])
            await self._clock.sleep(POLL_SECONDS)

    def _state(self, queue: MessageQueue, now: QueuePlace, seen: GroupPlaces, *, is_last: bool) -> State | None:
        target, before = self._targets[queue], self._before[queue]
        if now.held is None and (now.is_popped or not seen.members):
            return "stored" if is_stored(target, now) else None
        if has_obeyed(target, before, now):
            return "moved"
        # all members report their queues, and the queue has no owner: its next owner will begin at the target
        is_orphan = not now.owner and not seen.silent
        return "stored" if is_last and is_orphan and now.committed == target else None

    def _is_lost(self, queue: MessageQueue) -> bool:
        now = self.now.get(queue)
        if queue in self.states or now is None or not is_lost(self._targets[queue], self._before[queue], now):
            self._lost_since.pop(queue, None)
            return False
        since = self._lost_since.setdefault(queue, self._clock.monotonic())
        return self._clock.monotonic() - since >= LOST_SECONDS

    async def _send_again(self, lost: list[MessageQueue]) -> None:
        remoting, group = self._brokers.client.remoting, self._plan.group
        pulled = [queue for queue in lost if self._plan.ways[queue.broker_name] is WayOf.PULLED]
        await self._brokers.ask_about(
            pulled, lambda address, queue: reset_one(remoting, address, group, queue, self._targets[queue])
        )
        for queue in pulled:
            del self._lost_since[queue]
