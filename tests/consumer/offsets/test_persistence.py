"""Rounds of commits: one that is late, as after a suspension, trusts nothing that it knew."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rmqd.consumer.context import GroupContext
from rmqd.consumer.offsets.persistence import LATE_SECONDS, OffsetPersistence
from tests.clock import ManualClock
from tests.consumer.groups import group_options

INTERVAL_SECONDS = group_options().persist_consumer_offset_interval_seconds


class _Store:
    def __init__(self) -> None:
        self.doubts = 0

    def doubt(self) -> None:
        self.doubts += 1


@pytest.mark.parametrize(("late_seconds", "doubts"), [(0.0, 0), (LATE_SECONDS + 0.1, 1)])
async def test_a_round_that_is_late_looks_before_it_commits(late_seconds: float, doubts: int) -> None:
    clock, store = ManualClock(), _Store()
    client: Any = SimpleNamespace(routes=SimpleNamespace(by_endpoint=lambda queues: {}))
    context: Any = SimpleNamespace(clock=clock, options=group_options(), client=client, store=store)
    rounds = asyncio.create_task(OffsetPersistence(cast(GroupContext, context), {}).run())
    try:
        await clock.advance(INTERVAL_SECONDS - 1.0)
        clock.turn(1.0 + late_seconds)
        await clock.advance(INTERVAL_SECONDS)
        assert store.doubts == doubts
    finally:
        rounds.cancel()
        await asyncio.wait((rounds,))
