"""Bugs in an operator's reset of the group's offset."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd.consumer.offsets.broker_store import RemoteBrokerOffsetStore
from rmqd.consumer.pull.offset_moves import OffsetMoves
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.pull.pull_request import PullRequest
from rmqd.consumer.pull.pulled_queue import PulledQueue
from rmqd.consumer.pull.queue_release import QueueRelease
from rmqd.wire.message_queue import MessageQueue
from tests.nightly.simulation.planted.registry import both, calm, either, happens, plant, tries

is_told = either(both(calm, happens("reset", least=2)), tries("rewind"))


@plant(needs=is_told)
def told_reset_ignored(patch: pytest.MonkeyPatch) -> None:
    """A reset that a pull response reports has no effect."""

    async def reset(self: OffsetMoves, offset: int) -> None:
        return

    patch.setattr(OffsetMoves, "apply_reset", reset)


@plant(needs=tries("rewind_by_push"))
def pushed_reset_ignored(patch: pytest.MonkeyPatch) -> None:
    """A reset that a broker pushes to its members has no effect."""

    async def move_to(self: PullLoop, offset: int) -> None:
        return

    patch.setattr(PullLoop, "move_to", move_to)


@plant(needs=is_told)
def reset_obeyed_twice(patch: pytest.MonkeyPatch) -> None:
    """A queue is set to an operator's offset again three seconds later, after it has progressed."""
    right, later = OffsetMoves.apply_reset, set[asyncio.Task[None]]()

    async def reset(self: OffsetMoves, offset: int) -> None:
        await right(self, offset)
        later.add(asyncio.create_task(_again(self, offset)))

    async def _again(moves: OffsetMoves, offset: int) -> None:
        await asyncio.sleep(3.0)
        await right(moves, offset)

    patch.setattr(OffsetMoves, "apply_reset", reset)


@plant(needs=is_told)
def reset_keeps_the_cache(patch: pytest.MonkeyPatch) -> None:
    """A reset is stored, but the cache is kept: the next commit overwrites the reset."""
    patch.setattr(PulledQueue, "restart_at", lambda self, offset, because: None)
    patch.setattr(PullLoop, "restart_at", lambda self, offset, because: None)


@plant(needs=tries("rewind"))
def commit_after_a_reset(patch: pytest.MonkeyPatch) -> None:
    """A commit that was decided before a reset is sent after it, and overwrites it."""
    right = RemoteBrokerOffsetStore.commit

    async def commit(
        self: RemoteBrokerOffsetStore, queue: MessageQueue, offset: int, *, downward: bool = False
    ) -> None:
        before = self.committed.get(queue, 0)
        await right(self, queue, offset, downward=downward)
        if downward and before > offset:
            await right(self, queue, before)

    patch.setattr(RemoteBrokerOffsetStore, "commit", commit)


@plant(needs=tries("rewind_by_push"))
def reset_not_stored(patch: pytest.MonkeyPatch) -> None:
    """A reset moves the queue in memory, but is not committed: the next owner continues at the old offset."""
    right = RemoteBrokerOffsetStore.commit

    async def commit(
        self: RemoteBrokerOffsetStore, queue: MessageQueue, offset: int, *, downward: bool = False
    ) -> None:
        if not downward:
            await right(self, queue, offset)

    patch.setattr(RemoteBrokerOffsetStore, "commit", commit)


@plant(needs=tries("rewind_behind_a_filter"))
def reset_lost_in_a_hand_over(patch: pytest.MonkeyPatch) -> None:
    """A reset in the response to a cancelled pull is dropped, and the queue's next owner never learns of it."""
    patch.setattr(PullRequest, "_came_late", lambda self, asked, reply: None)


@plant(needs=tries("rewind_the_last"))
def reset_while_leaving_not_stored(patch: pytest.MonkeyPatch) -> None:
    """A reset that arrives during a queue's release is not stored for the next owner."""

    async def commit_move(self: QueueRelease, moved_to: Any) -> None:
        return None

    patch.setattr(QueueRelease, "_commit_move", commit_move)
