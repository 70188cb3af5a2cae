"""Garbage in cycles is freed as the memory grows."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from rmqd.runtime.event_loop import CAN_READ_MEMORY, MIN_GROWTH_BYTES, collect_as_memory_grows

MIB_OF_GROWTH = MIN_GROWTH_BYTES >> 20

pytestmark = pytest.mark.skipif(not CAN_READ_MEMORY, reason="the system does not tell how much memory a process takes")


class Node:
    """A reference cycle with 1 MiB of data."""

    def __init__(self) -> None:
        self.itself = self
        self.body = b"x" * (1 << 20)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Without Python's automatic collection, only the tested code frees cycles."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
async def test_cycles_that_take_memory_are_collected() -> None:
    watching = asyncio.create_task(collect_as_memory_grows())
    alive, made = weakref.WeakSet[Node](), 0
    while len(alive) == made:
        assert made < 8 * MIB_OF_GROWTH, "no node was freed"
        for _ in range(8):
            alive.add(Node())
        made += 8
        await asyncio.sleep(0.01)
    watching.cancel()
