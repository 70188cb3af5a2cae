"""A batch has the same outcome in the daemon and in a worker process.

The core of these tests is in tests/plugins/worker_processes/test_outcomes.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.consumer.handling.handler_threads import UnusableHandlerError
from rmqd.handler_api.batch import Batch
from rmqd.plugins.handler_catalogue import load_handler
from rmqd.testing import make_batch, make_message
from tests.plugins.worker_processes.pools import GROUP, group_config, pooled
from tests.plugins.worker_processes.scripted_handler import ASYNC, TYPED
from tests.plugins.worker_processes.test_outcomes import batch_of, called
from tests.waiting import eventually

pytestmark = pytest.mark.process


async def test_typed_handlers_and_invalid_bodies_have_the_same_outcome() -> None:
    rows = [("pass", "raise OwnError(3)", "pass"), ("raise Retry(3)", "pass", "raise DeadLetter('w')")]
    here = load_handler(GROUP, group_config(TYPED))
    async with pooled(TYPED) as there:
        for mode in ({}, {"consume_mode": "orderly"}):
            for lines in rows:
                expected = await called(here, batch_of(lines, mode, as_json=True))
                assert await called(there, batch_of(lines, mode, as_json=True)) == expected, lines
            expected = await called(here, batch_of(("no JSON", "none"), mode))
            assert await called(there, batch_of(("no JSON", "none"), mode)) == expected
            assert "InvalidPayloadError" in str(expected["decided"])


async def test_a_handler_that_returns_a_coroutine_fails_the_group() -> None:
    async with pooled(f"{__name__}:forgotten") as handler:
        with pytest.raises(UnusableHandlerError, match="returned a coroutine that was never awaited"):
            await handler.handle(make_batch())


def forgotten(batch: Batch) -> Any:
    """A plugin that returns a coroutine without awaiting it."""

    async def work() -> None:
        """Never run."""

    return work()


async def test_a_task_that_outlives_its_call_is_logged(capfd: pytest.CaptureFixture[str]) -> None:
    lines = [
        "import asyncio; __name__ = 'tests'",
        "async def work(): await asyncio.sleep(0)",
        "asyncio.create_task(work())",
    ]
    said: list[str] = []

    def is_told() -> bool:
        said.extend(capfd.readouterr())
        return "handler.task_left" in "".join(said)

    async with pooled(ASYNC) as there:
        await there.handle(make_batch(make_message("\n".join(lines))))
        await eventually(is_told, "the process has logged it")
