"""Bugs in the embedded broker."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.broker import controller as locks
from rmqd.broker.consumer_registry import ConsumerOffsetManager
from rmqd.broker.controller import RebalanceLockManager
from rmqd.broker.held_requests import PullRequestHoldService
from rmqd.broker.member_registry import ConsumerManager
from rmqd.broker.peer_channel import Channel
from rmqd.broker.schedule import ScheduleMessageService
from rmqd.broker.store.message_store import MessageStore
from rmqd.broker.store.queue_store import GetResult
from rmqd.wire.message_queue import MessageQueue
from tests.nightly.simulation.planted.registry import both, breaks, hands_over, never, orderly, plant, pulled, slow


@plant
def broker_wakes_no_pull(patch: pytest.MonkeyPatch) -> None:
    """A held pull is not answered when a message arrives, but only when its time is over."""
    patch.setattr(PullRequestHoldService, "arrived", lambda self, arrival: None)


@plant
def broker_forgets_a_held_pull(patch: pytest.MonkeyPatch) -> None:
    """Every third held pull that expires is never answered."""
    right = PullRequestHoldService._expire
    seen: dict[int, int] = {}

    def expire(self: PullRequestHoldService, pull: Any) -> None:
        seen[id(self)] = seen.get(id(self), 0) + 1
        if seen[id(self)] % 3:
            right(self, pull)
        else:
            self._take(pull)

    patch.setattr(PullRequestHoldService, "_expire", expire)


@plant(needs=both(hands_over, slow))
def broker_locks_for_everybody(patch: pytest.MonkeyPatch) -> None:
    """The broker grants a queue's lock to every member that requests it."""

    def lock(self: RebalanceLockManager, group: str, client_id: str, queues: Any) -> frozenset[MessageQueue]:
        return frozenset(queues)

    patch.setattr(RebalanceLockManager, "lock", lock)


@plant(needs=both(orderly, pulled, breaks("kill"), never("crash", "lose_master")))
def broker_locks_for_ever(patch: pytest.MonkeyPatch) -> None:
    """The locks of a member that is gone do not expire."""
    patch.setattr(locks, "LOCK_SECONDS", float("inf"))


@plant(needs=both(hands_over, slow, orderly))
def broker_locks_too_short(patch: pytest.MonkeyPatch) -> None:
    """Locks expire after ten seconds, before they are renewed."""
    patch.setattr(locks, "LOCK_SECONDS", 10.0)


@plant
def broker_lists_the_dead(patch: pytest.MonkeyPatch) -> None:
    """A member stays in the broker's list when its connection ends."""
    patch.setattr(ConsumerManager, "channel_closed", lambda self, channel: None)


@plant
def broker_tells_nobody(patch: pytest.MonkeyPatch) -> None:
    """Members are not notified when a member leaves."""
    patch.setattr(ConsumerManager, "channel_closed", lambda self, channel: _removed(self, channel))
    patch.setattr(ConsumerManager, "unregister", lambda self, group, channel, notify=True: _removed(self, channel))


def _removed(manager: ConsumerManager, channel: Channel) -> None:
    for info in manager.all():
        manager._remove(info, channel)


@plant
def broker_keeps_the_first_offset(patch: pytest.MonkeyPatch) -> None:
    """Every fourth commit of a group in a topic is answered, but not stored."""
    right, last = ConsumerOffsetManager.commit, dict[tuple[int, str, str], int]()

    def commit(self: ConsumerOffsetManager, group: str, topic: str, queue_id: int, offset: int) -> None:
        count = last[id(self), group, topic] = last.get((id(self), group, topic), 0) + 1
        if count % 4:
            right(self, group, topic, queue_id, offset)

    patch.setattr(ConsumerOffsetManager, "commit", commit)


@plant
def broker_loses_a_retry(patch: pytest.MonkeyPatch) -> None:
    """The broker loses every third delayed message."""
    right = ScheduleMessageService._deliver_level

    def deliver(self: ScheduleMessageService, level: int, queue: Any, start: int, now_ms: int, most: int) -> int:
        if start % 3 == 0 and start < queue.max_offset:
            self._offsets[level] = start = start + 1
        return right(self, level, queue, start, now_ms, most)

    patch.setattr(ScheduleMessageService, "_deliver_level", deliver)


@plant(needs=breaks("crash"))
def broker_delivers_a_retry_twice(patch: pytest.MonkeyPatch) -> None:
    """A restarted broker delivers the earlier delayed messages again."""
    right = ScheduleMessageService.__init__

    def init(self: ScheduleMessageService, *arguments: Any) -> None:
        right(self, *arguments)
        self._offsets.clear()

    patch.setattr(ScheduleMessageService, "__init__", init)


@plant
def broker_skips_in_full_replies(patch: pytest.MonkeyPatch) -> None:
    """A response with more than four messages lacks the last one, and the next pull begins after it."""
    right = MessageStore.get

    def get(self: MessageStore, topic: str, queue_id: int, offset: int, most: int, wanted: Any = None) -> GetResult:
        found = right(self, topic, queue_id, offset, most, wanted)
        if len(found.records) > 4:
            del found.records[-1]
        return found

    patch.setattr(MessageStore, "get", get)
