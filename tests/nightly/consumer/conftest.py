"""The fixtures and the event loop of the daily tests of the engine."""

from __future__ import annotations

from tests.consumer.conftest import (
    broker,
    clock,
    flowing,
    hasty,
    no_task_left,
    pool,
    pytest_asyncio_loop_factories,
    queue,
    seen,
    two,
    unpaced,
)

__all__ = [
    "broker",
    "clock",
    "flowing",
    "hasty",
    "no_task_left",
    "pool",
    "pytest_asyncio_loop_factories",
    "queue",
    "seen",
    "two",
    "unpaced",
]
