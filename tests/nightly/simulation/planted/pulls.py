"""Bugs in requests for messages, and in the use of their responses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.pull.assigned_queue import AssignedQueue
from rmqd.consumer.pull.pull_loop import PullLoop
from rmqd.consumer.pull.pull_request import PullRequest
from rmqd.consumer.pull.pulled_queue import PulledQueue
from rmqd.errors import RemotingError, RmqdError
from rmqd.wire.command import RemotingCommand
from tests.nightly.simulation.planted.registry import both, calm, happens, plant


@plant
def pulls_doubled_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    """After a lost connection, two pulls of a queue are in flight, and both responses count."""
    right, more = PullLoop._failed, set[asyncio.Task[Any]]()

    async def failed(self: PullLoop, error: RmqdError) -> None:
        if isinstance(error, RemotingError):
            again = asyncio.create_task(self.run())
            more.add(again)
        await right(self, error)

    patch.setattr(PullLoop, "_failed", failed)


@plant(needs=both(calm, happens("reset_by_push", least=2)))
def answer_of_a_cancelled_pull_counts(patch: pytest.MonkeyPatch) -> None:
    """The response to a cancelled pull goes into the queue's cache, whichever member owns the queue by then."""
    right, late = PullRequest.pull, set[asyncio.Future[None]]()

    async def ask(self: PullRequest, *args: Any) -> RemotingCommand:
        return await asyncio.shield(right(self, *args))

    found = PullLoop._pull

    async def pull(self: PullLoop) -> RemotingCommand:
        asked = asyncio.ensure_future(found(self))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(lambda done: late.add(asyncio.ensure_future(_put(self, done))))
            raise

    patch.setattr(PullRequest, "pull", ask)
    patch.setattr(PullLoop, "_pull", pull)


async def _put(loop: PullLoop, done: asyncio.Future[RemotingCommand]) -> None:
    if not done.cancelled() and done.exception() is None and done.result().code == 0:
        await loop._found(done.result())


@plant(needs=both(calm, happens("leave", "restart", least=3)))
def given_up_queue_is_pulled_on(patch: pytest.MonkeyPatch) -> None:
    """A queue under release is pulled and handed out until its last commit."""
    right = AssignedQueue.run

    async def run(self: AssignedQueue) -> None:
        owning = asyncio.create_task(self._own())
        self._own = _nothing  # type: ignore[method-assign]
        try:
            await right(self)
        finally:
            owning.cancel()

    patch.setattr(AssignedQueue, "run", run)
    patch.setattr(ProcessQueue, "start_release", lambda self: setattr(self, "handed_out_to", self.next_offset))


async def _nothing() -> None:
    return None


@plant
def failed_pull_skips(patch: pytest.MonkeyPatch) -> None:
    """A failed pull moves the queue's next offset forward by one."""
    right = PullLoop._failed

    async def failed(self: PullLoop, error: RmqdError) -> None:
        self.process_queue.continue_at(self.process_queue.next_offset + 1)
        await right(self, error)

    patch.setattr(PullLoop, "_failed", failed)


@plant
def failed_pull_ends_the_loop(patch: pytest.MonkeyPatch) -> None:
    """A queue is not pulled again after a failed pull."""

    async def failed(self: PullLoop, error: RmqdError) -> None:
        await self._context.clock.sleep(10.0**6)

    patch.setattr(PullLoop, "_failed", failed)


@plant
def error_of_one_queue_ends_the_group(patch: pytest.MonkeyPatch) -> None:
    """A failed pull ends the whole group."""

    async def failed(self: PullLoop, error: RmqdError) -> None:
        raise error

    patch.setattr(PullLoop, "_failed", failed)


@plant
def held_back_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A queue that was full is not pulled again when there is room."""

    async def wait_for_relief(self: PulledQueue, reason: Any) -> None:
        await self._context.clock.sleep(10.0**6)

    patch.setattr(PulledQueue, "_wait_for_relief", wait_for_relief)


@plant
def never_full(patch: pytest.MonkeyPatch) -> None:
    """A queue is pulled even if its cache is full."""
    patch.setattr(PulledQueue, "_hold_back", lambda self: None)


@plant
def next_pull_one_too_far(patch: pytest.MonkeyPatch) -> None:
    """After a response with several messages, the next pull begins one offset too high."""
    right = ProcessQueue.put

    def put(self: ProcessQueue, block: Any, next_offset: int, held: Any = ()) -> None:
        right(self, block, next_offset + (len(block.messages) > 1), held)

    patch.setattr(ProcessQueue, "put", put)


@plant
def next_pull_one_too_low(patch: pytest.MonkeyPatch) -> None:
    """After a response with several messages, the next pull begins at the last of these messages again."""
    right = ProcessQueue.put

    def put(self: ProcessQueue, block: Any, next_offset: int, held: Any = ()) -> None:
        right(self, block, next_offset - (len(block.messages) > 1), held)

    patch.setattr(ProcessQueue, "put", put)
