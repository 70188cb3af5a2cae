"""Bugs in writing and reading the offset file of a broadcasting group."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rmqd.consumer.offsets.local_file_store import LocalFileOffsetStore
from rmqd.wire.message_queue import MessageQueue
from tests.nightly.simulation.planted.registry import both, breaks, plant
from tests.simulation.plan import Plan


def broadcasting(plan: Plan) -> bool:
    """A broadcasting group."""
    return plan.is_broadcasting


def _in_peace(plan: Plan) -> bool:
    """Histories without a cause for duplicates."""
    return not breaks("kill", "rush")(plan)


@plant(needs=broadcasting)
def file_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """The file has each offset of a round one too high: a message is lost whenever a member begins there."""
    right = LocalFileOffsetStore.persist

    async def persist(self: LocalFileOffsetStore, offsets: Mapping[MessageQueue, int]) -> bool:
        return await right(self, {queue: offset + 1 for queue, offset in offsets.items()})

    patch.setattr(LocalFileOffsetStore, "persist", persist)


@plant(needs=both(broadcasting, _in_peace, breaks("leave", "restart")))
def file_not_written_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Messages handled since the last round are not stored when a member leaves."""

    async def commit_upward(self: LocalFileOffsetStore, queue: MessageQueue, offset: int, *_: object) -> bool:
        return True

    patch.setattr(LocalFileOffsetStore, "commit_upward", commit_upward)
    patch.setattr(LocalFileOffsetStore, "commit", commit_upward)


@plant(needs=both(broadcasting, breaks("leave", "restart")))
def file_not_read(patch: pytest.MonkeyPatch) -> None:
    """A member ignores its offset file and begins at the first message again."""

    async def read(self: LocalFileOffsetStore, queue: MessageQueue) -> int | None:
        return None

    patch.setattr(LocalFileOffsetStore, "read", read)
