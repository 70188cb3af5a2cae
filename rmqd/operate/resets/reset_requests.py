"""Sends the resets of a plan to the brokers, and waits a limited time until the members have applied them.

`ResetWatch` polls queues after a reset until each queue reaches its target or the time is over.

`has_applied_reset` decides whether a queue's owner continues at the operator's new offset. The broker's response to the
reset is not proof. The broker stores the new offset at once. Until it has reported the reset in a pull response, it
answers commits with success and stores nothing. If the connection of that pull is lost, the member continues at its old
offset, and its next commit undoes the reset (docs/proof/ownership.md). So the member is asked for its own offset, `at`.
`at` proves the reset only if the stored offset is at least the target and at most `at`, because a commit in flight may
undo a reset until the next commit. The direction of the reset adds a condition:

    forward    none
    back       `at` is below the member's offset before the reset, or the member has replaced its cache, as rmqd and
               Java do for a reset. With a new cache the member may have caught up since the previous poll.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from rmqd.client.api.admin_requests import RESET_TO_END, reset_offset
from rmqd.client.api.offset_requests import update_consumer_offset
from rmqd.client.brokers import Brokers
from rmqd.client.group_reader import GroupReader
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.errors import OffsetResetError, RmqdError
from rmqd.operate.resets.reset_plan import (
    SERVER_SIDE_RESET,
    GroupPositions,
    PlannedQueueReset,
    QueuePosition,
    ResetNotice,
    ResetPlan,
    read_places,
)
from rmqd.wire.bodies.group_bodies import ProcessQueueInfo
from rmqd.wire.message_queue import MessageQueue


def has_applied_reset(target: int, before: QueuePosition, now: QueuePosition) -> bool:
    """Return whether the queue's current owner continues at the target. `before` was read before the reset was sent."""
    if now.held is None:
        return _is_proven_by_offset(target, before, now)
    at = now.held.commit_offset
    if now.committed is None or not target <= now.committed <= at:
        return False
    begun = before.committed if before.held is None else before.held.commit_offset
    if begun is None or target >= begun:
        return True
    if before.owner != now.owner or before.held is None:
        return at < (before.committed or 0)
    return at < begun or _is_new(before.held, now.held, is_orderly=now.is_orderly)


def _is_proven_by_offset(target: int, before: QueuePosition, now: QueuePosition) -> bool:
    """Return whether the stored offset alone proves the reset. Used if no member reports its offset in the queue."""
    if now.committed is None:
        return False
    return target < now.committed and (before.committed is None or before.committed <= target
                                       or now.committed < before.committed)  # fmt: skip


def is_reset_lost(target: int, before: QueuePosition, now: QueuePosition) -> bool:
    """Return whether the broker accepts commits again although the member never received the reset.

    False unless the owner is still the same and reports its offset.
    """
    if now.held is None or before.held is None or now.owner != before.owner or now.committed is None:
        return False
    return now.committed != target and now.held.commit_offset >= before.held.commit_offset


def is_stored(target: int, now: QueuePosition) -> bool:
    """Return whether the broker's stored offset is the target or higher."""
    return now.committed is not None and now.committed >= target


def _is_new(before: ProcessQueueInfo, now: ProcessQueueInfo, *, is_orderly: bool) -> bool:
    """Return whether a member has replaced its cache of a queue between two reports.

    Java and rmqd set the last lock time when they create a cache. In an orderly group each renewal of the lock changes
    this time, so the last consume time is compared there.
    """
    if is_orderly:
        return now.last_consume_timestamp > before.last_consume_timestamp
    return now.last_lock_timestamp > before.last_lock_timestamp


POLL_SECONDS: Final = 0.2
LOST_SECONDS: Final = 3.0

QueueResetState = Literal["moved", "stored", "not_obeyed", "failed", "unchanged"]


class ResetWatch:
    """Polls the queues of a plan until the members have applied the resets that were sent.

    Brokers of 5.x report a reset only once, possibly on a lost connection; the member then continues without it. If a
    reset has been lost for LOST_SECONDS, it is sent again.
    """

    def __init__(
        self, brokers: Brokers, plan: ResetPlan, targets: Mapping[MessageQueue, int], wait_seconds: float
    ) -> None:
        self.states: dict[MessageQueue, QueueResetState] = {}
        self.now: dict[MessageQueue, QueuePosition] = {}
        self.errors: dict[MessageQueue, RmqdError] = {}
        """The brokers' errors in the last poll, by queue."""
        self.members = plan.places.members
        self.silent = plan.places.silent
        self._before = {move.queue: move.place for move in plan.moves}
        self._brokers = brokers
        self._plan = plan
        self._targets = targets
        self._reader = GroupReader(brokers, plan.change.group)
        self._wait_seconds = wait_seconds
        self._clock = brokers.client.clock
        self._lost_since: dict[MessageQueue, float] = {}

    async def run(self) -> None:
        """Poll until each queue has an entry in `states`, or the time to wait is over."""
        deadline = self._clock.monotonic() + self._wait_seconds
        while open_queues := [queue for queue in self._targets if queue not in self.states]:
            seen = await read_places(self._reader, self._plan.change.topic, open_queues)
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

    def _state(
        self, queue: MessageQueue, now: QueuePosition, seen: GroupPositions, *, is_last: bool
    ) -> QueueResetState | None:
        target, before = self._targets[queue], self._before[queue]
        if now.held is None and (now.is_popped or not seen.members):
            return "stored" if is_stored(target, now) else None
        if has_applied_reset(target, before, now):
            return "moved"
        # no member owns the queue, and all members have reported, so its next owner will start at the target
        is_orphan = not now.owner and not seen.silent
        return "stored" if is_last and is_orphan and now.committed == target else None

    def _is_lost(self, queue: MessageQueue) -> bool:
        now = self.now.get(queue)
        if queue in self.states or now is None or not is_reset_lost(self._targets[queue], self._before[queue], now):
            self._lost_since.pop(queue, None)
            return False
        since = self._lost_since.setdefault(queue, self._clock.monotonic())
        return self._clock.monotonic() - since >= LOST_SECONDS

    async def _send_again(self, lost: list[MessageQueue]) -> None:
        remoting, group = self._brokers.client.remoting, self._plan.change.group
        pulled = [queue for queue in lost if self._plan.notices[queue.broker_name] is ResetNotice.PULLED]
        await self._brokers.request_for_queues(
            pulled, lambda address, queue: _reset_one(remoting, address, group, queue, self._targets[queue])
        )
        for queue in pulled:
            del self._lost_since[queue]


@dataclass(frozen=True, slots=True)
class QueueResetOutcome:
    """The outcome of a reset for one queue. `now` is the queue's place in the last poll.

    `moved`: the owner continues at the target. `stored`: the broker has the target, and the queue has no owner, or is
    popped. `not_obeyed`: neither happened before the timeout. `failed`: the broker refused, or did not answer.
    `unchanged`: nothing was sent, because the group was at the target already.
    """

    move: PlannedQueueReset
    state: QueueResetState
    now: QueuePosition
    error: str = ""


@dataclass(frozen=True, slots=True)
class ResetOutcome:
    """The outcome of a plan. `members` are the members that read the topic; `silent` members did not respond.

    `pushed_by` are the brokers that pushed the reset to connected members, instead of storing it for the next pull.
    """

    queues: tuple[QueueResetOutcome, ...]
    errors: Mapping[str, RmqdError]
    members: frozenset[str]
    silent: frozenset[str]
    pushed_by: frozenset[str]


async def apply_reset_plan(
    brokers: Brokers, plan: ResetPlan, wait_seconds: float, *, sent: Callable[[], None] = lambda: None
) -> ResetOutcome:
    """Send a recent plan's resets, call `sent`, and wait up to `wait_seconds` until the members have applied them."""
    targets, errors = await _send(brokers, plan)
    sent()
    watch = ResetWatch(brokers, plan, targets, wait_seconds)
    await watch.run()
    failed = {queue.broker_name: error for queue, error in (errors | watch.errors).items()}
    queues = tuple(_moved(move, targets, errors, watch) for move in plan.moves)
    pushed_by = frozenset(broker for broker in plan.notices if _is_pushed(plan, broker))
    return ResetOutcome(queues, {**plan.errors, **failed}, watch.members, watch.silent, pushed_by)


def _is_pushed(plan: ResetPlan, broker: str) -> bool:
    return plan.notices[broker] is ResetNotice.PUSHED and bool(plan.places.members)


def _moved(
    move: PlannedQueueReset,
    targets: Mapping[MessageQueue, int],
    errors: Mapping[MessageQueue, RmqdError],
    watch: ResetWatch,
) -> QueueResetOutcome:
    queue = move.queue
    if queue in targets:
        state, now = watch.states.get(queue, "not_obeyed"), watch.now.get(queue, move.place)
        silence = None if queue in watch.states else watch.errors.get(queue)
        return QueueResetOutcome(replace(move, target=targets[queue]), state, now, str(silence or ""))
    if not move.is_due:
        return QueueResetOutcome(move, "unchanged", move.place)
    return QueueResetOutcome(move, "failed", move.place, str(errors.get(queue, "the broker did not confirm the reset")))


async def _reset_one(
    remoting: RemotingClient, address: str, group: str, queue: MessageQueue, target: int | None
) -> dict[MessageQueue, int]:
    """Ask a broker to store a reset of one queue, and return the new offset by queue. Raises RmqdError.

    `target` None stands for the queue's end when the broker executes the request, so that no member moves back.
    """
    to_end = RESET_TO_END if target is None else 0
    return await reset_offset(remoting, address, group, queue.topic, to_end, queue_id=queue.queue_id, offset=target)


def _pushed_time(plan: ResetPlan, broker: str, queues: Iterable[MessageQueue]) -> int:
    """Return the time (Unix milliseconds, -1: the end) of a reset that the broker pushes to members.

    `queues` are all queues of the topic. Raises OffsetResetError if a push cannot do the planned reset.
    """
    old = f"this broker pushes resets to members (RocketMQ 4, or {SERVER_SIDE_RESET}=false)"
    timestamp_ms = plan.change.goal.timestamp_ms
    if timestamp_ms is None:
        raise OffsetResetError(f"{old}, which works only by time: use --to first, last or a time, or stop the members")
    if {queue for queue in queues if queue.broker_name == broker} - {move.queue for move in plan.moves}:
        raise OffsetResetError(f"{old}, always for all queues: omit --broker and --queue, or stop the members")
    return timestamp_ms


async def _send(brokers: Brokers, plan: ResetPlan) -> tuple[dict[MessageQueue, int], dict[MessageQueue, RmqdError]]:
    """Send the resets that are due. Returns the new offset by queue, and the errors of queues without one."""
    remoting, routes, change = brokers.client.remoting, brokers.client.routes, plan.change
    due = {move.queue: move.target for move in plan.due}

    async def reset(address: str, queue: MessageQueue) -> dict[MessageQueue, int]:
        target, broker = due[queue], queue.broker_name
        if _is_pushed(plan, broker):
            timestamp_ms = _pushed_time(plan, broker, routes.queues(change.topic))
            return await reset_offset(remoting, address, change.group, change.topic, timestamp_ms)
        if plan.notices[broker] is ResetNotice.PULLED:
            wanted = None if change.goal.kind == "last" else target
            return await _reset_one(remoting, address, change.group, queue, wanted)
        if not await update_consumer_offset(remoting, address, change.group, queue, target):
            raise OffsetResetError("an earlier reset still waits for the group's next pull; try again after this pull")
        return {queue: target}

    # a broker that pushes resets does so for all queues of the topic, so it gets one request, with its first queue
    first = {queue.broker_name: queue for queue in reversed(due)}
    asked = {queue: first[queue.broker_name] if _is_pushed(plan, queue.broker_name) else queue for queue in due}
    answers = await brokers.request_for_queues(dict.fromkeys(asked.values()), reset)
    told = {queue: offset for table in answers.found.values() for queue, offset in table.items()}
    errors = {queue: answers.errors[one] for queue, one in asked.items() if one in answers.errors}
    return {queue: told[queue] for queue in due if queue in told}, errors
