"""Bugs to be put into rmqd, one at a time, to see that a history finds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.handling.line import Line
from rmqd.consumer.pull.giving_up import GivingUp

Plant = Callable[[pytest.MonkeyPatch], None]


def commit_before_finish(patch: pytest.MonkeyPatch) -> None:
    """What was pulled is committed, whether or not a handler has finished it."""
    patch.setattr(ProcessQueue, "commit_offset", lambda self: self.next_offset)


def off_by_one(patch: pytest.MonkeyPatch) -> None:
    """The first message that is not finished counts as finished."""
    right = ProcessQueue.commit_offset

    def commit_offset(self: ProcessQueue) -> int:
        return right(self) + bool(self.blocks)

    patch.setattr(ProcessQueue, "commit_offset", commit_offset)


def lost_wake_up(patch: pytest.MonkeyPatch) -> None:
    """A worker that sleeps is not woken for a queue of few messages."""
    patch.setattr(Line, "wake", lambda self: None)


def no_last_commit(patch: pytest.MonkeyPatch) -> None:
    """A queue is given up without its last commit, which counts as done."""

    async def commit(self: GivingUp, offset: int) -> bool:
        return True

    patch.setattr(GivingUp, "_commit", commit)


def no_drain(patch: pytest.MonkeyPatch) -> None:
    """A queue is given up while handlers have batches of it."""

    async def drain(self: GivingUp, loop: Any) -> bool:
        return True

    patch.setattr(GivingUp, "_drain", drain)


PLANTED: Final[dict[str, Plant]] = {
    plant.__name__: plant for plant in (commit_before_finish, off_by_one, lost_wake_up, no_last_commit, no_drain)
}
