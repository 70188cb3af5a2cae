"""Bugs in the release of a queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqd.consumer.assigned.assignment import ReleaseSignal
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.pull.queue_release import QueueRelease
from rmqd.errors import RmqdError
from tests.nightly.simulation.planted.registry import both, breaks, hands_over, happens, plant, pulled, slow, tries


@plant
def no_last_commit(patch: pytest.MonkeyPatch) -> None:
    """A queue is released without its last commit, which counts as stored."""

    async def commit(self: QueueRelease, offset: int) -> bool:
        return True

    async def try_once(self: QueueRelease, offset: int) -> None:
        return None

    patch.setattr(QueueRelease, "_commit", commit)
    patch.setattr(QueueRelease, "_try_once", try_once)


@plant(needs=both(pulled, tries("busy")))
def last_commit_tried_once(patch: pytest.MonkeyPatch) -> None:
    """A queue's last commit is not retried after a temporary error."""

    async def commit(self: QueueRelease, offset: int) -> bool:
        try:
            return await self._context.store.commit_upward(self._queue, offset, self._may_commit)
        except RmqdError:
            return False

    patch.setattr(QueueRelease, "_commit", commit)


@plant(needs=both(hands_over, slow))
def last_commit_before_the_drain(patch: pytest.MonkeyPatch) -> None:
    """The last commit has only the messages that were finished before the drain."""
    right = QueueRelease.run

    async def run(self: QueueRelease, loop: PullLoop | None, moved_to: Callable[[], int | None]) -> None:
        if loop is not None:
            offset = loop.process_queue.commit_offset()
            commit = self._commit

            async def commit_that(_: int) -> bool:
                return await commit(offset)

            patch.setattr(self, "_commit", commit_that)
        await right(self, loop, moved_to)

    patch.setattr(QueueRelease, "run", run)


@plant(needs=both(hands_over, slow))
def no_drain(patch: pytest.MonkeyPatch) -> None:
    """A queue is released while handlers have batches of it."""

    async def drain(self: QueueRelease, loop: Any) -> bool:
        return True

    patch.setattr(QueueRelease, "_drain", drain)


@plant
def drained_without_end(patch: pytest.MonkeyPatch) -> None:
    """A released queue is held for the maximum time, even if no handler has any of its messages."""
    right = ReleaseSignal.drain

    async def drain(self: ReleaseSignal, process_queues: Any) -> bool:
        is_drained = await right(self, process_queues)
        await self._context.clock.sleep(max(0.0, self.until - self._context.clock.monotonic()))
        return is_drained

    async def always(self: QueueRelease, loop: PullLoop) -> bool:
        return await self._signal.drain((*loop.replaced_queues, loop.process_queue))

    patch.setattr(ReleaseSignal, "drain", drain)
    patch.setattr(QueueRelease, "_drain", always)


@plant(needs=both(hands_over, slow))
def unlocked_before_the_last_commit(patch: pytest.MonkeyPatch) -> None:
    """A queue is unlocked before its last commit: the next owner may read the old offset."""
    right = QueueRelease.run

    async def run(self: QueueRelease, loop: PullLoop | None, moved_to: Callable[[], int | None]) -> None:
        await self._context.ownership.release(self._queue)
        await right(self, loop, moved_to)

    patch.setattr(QueueRelease, "run", run)


@plant(needs=both(pulled, tries("join")))
def lock_kept(patch: pytest.MonkeyPatch) -> None:
    """A released queue stays locked."""
    right = QueueRelease.run

    async def run(self: QueueRelease, loop: PullLoop | None, moved_to: Callable[[], int | None]) -> None:
        context, release = self._context, self._context.ownership.release

        async def keep(queue: Any) -> None:
            return None

        context.ownership.release = keep  # type: ignore[method-assign]
        try:
            await right(self, loop, moved_to)
        finally:
            context.ownership.release = release  # type: ignore[method-assign]

    patch.setattr(QueueRelease, "run", run)


@plant(needs=both(pulled, breaks("rush"), breaks("freeze", "seclude", "partition", "half")))
def lock_kept_where_the_last_commit_failed(patch: pytest.MonkeyPatch) -> None:
    """A queue whose last commit failed is never unlocked."""
    right = QueueRelease._commit

    async def commit(self: QueueRelease, offset: int) -> bool:
        is_committed = await right(self, offset)
        if not is_committed:
            await self._context.clock.sleep(float(10**6))
        return is_committed

    patch.setattr(QueueRelease, "_commit", commit)


@plant(needs=both(hands_over, slow, happens("leave", least=2)))
def stop_that_ends_without_its_queues(patch: pytest.MonkeyPatch) -> None:
    """A stopping member does not wait for handlers: their messages are handled again by others."""
    right = ReleaseSignal.begin

    def begin(self: ReleaseSignal, drain_seconds: float, *, last: bool) -> None:
        right(self, 0.0 if last else drain_seconds, last=last)

    patch.setattr(ReleaseSignal, "begin", begin)
