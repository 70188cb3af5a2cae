"""Bugs in the commits that pulls carry."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.offsets.pending_commits import OffsetRead, PullCommits
from rmqd.wire.message_queue import MessageQueue
from tests.nightly.simulation.planted.registry import both, hands_over, plant, pulled, tries
from tests.nightly.simulation.planted.slaves import has_slaves
from tests.simulation.plan import Plan


def has_late_commits(plan: Plan) -> bool:
    """Brokers that process some commits late."""
    return plan.late_commits > 0


@plant(needs=both(has_slaves, pulled))
def pull_commits_at_a_slave(patch: pytest.MonkeyPatch) -> None:
    """A pull to any replica carries a commit, and the commit counts as stored."""
    patch.setattr(RemoteBrokerOffsetStore, "_is_at_master", lambda self, queue, on: on.is_open)


@plant(needs=both(pulled, tries("rewind_by_push"), lambda plan: bool(plan.seed % 2)))
def reset_while_a_pull_commits(patch: pytest.MonkeyPatch) -> None:
    """A reset is stored while a pull with a commit is in flight, which the broker may process later."""
    right = RemoteBrokerOffsetStore._in_turn

    async def in_turn(self: RemoteBrokerOffsetStore, queue: MessageQueue, offset: int, epoch: int) -> bool:
        if queue in self._resets:
            _forget_pull(self, queue)
        return await right(self, queue, offset, epoch)

    patch.setattr(RemoteBrokerOffsetStore, "_in_turn", in_turn)


@plant(needs=both(pulled, has_late_commits))
def pull_commits_beside_other_commits(patch: pytest.MonkeyPatch) -> None:
    """A pull carries a commit while another commit of the queue is in flight, and the reverse."""

    async def over(self: PullCommits, queue: MessageQueue, read: object) -> OffsetRead | None:
        return None

    patch.setattr(PullCommits, "wait_for_end", over)
    patch.setattr(RemoteBrokerOffsetStore, "_is_free", lambda self, queue: True)


@plant(needs=both(hands_over, has_late_commits))
def pull_commits_after_the_hand_over(patch: pytest.MonkeyPatch) -> None:
    """A queue is released while a pull with a commit is in flight, which the broker may process later."""
    right = RemoteBrokerOffsetStore._upward

    async def upward(
        self: RemoteBrokerOffsetStore, queue: MessageQueue, offset: int, epoch: int, may_commit: Callable[[], bool]
    ) -> bool:
        _forget_pull(self, queue)
        return await right(self, queue, offset, epoch, may_commit)

    patch.setattr(RemoteBrokerOffsetStore, "_upward", upward)


def _forget_pull(store: RemoteBrokerOffsetStore, queue: MessageQueue) -> None:
    store._pulls._in_flight.pop(queue, None)
    store._unanswered._commits.pop(queue, None)
