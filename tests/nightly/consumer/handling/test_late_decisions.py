"""Late events: decisions after the handler has returned, and tasks that end later. Also commits without effect."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from structlog.contextvars import bound_contextvars
from structlog.testing import capture_logs

from rmqd.handler_api.batch import Batch
from tests.consumer.handling.test_late_decisions import ORDERLY
from tests.consumer.pool import StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


async def test_a_decision_in_the_next_quick_call_is_too_late(pool: StartPool) -> None:
    """The earlier message counts as acknowledged, although it may not be finished yet."""
    batches: list[Batch] = []
    errors: list[RuntimeError] = []

    async def handle(batch: Batch) -> None:
        batches.append(batch)
        if len(batches) == 2:
            try:
                batches[0].retry(batches[0][0])
            except RuntimeError as error:
                errors.append(error)

    async with pool(handle, concurrency=1) as running:
        queue = running.queue(3)
        await eventually(done(queue), "all are handled")
    assert len(errors) == 1
    assert handled(queue) == {"acked": 3}


async def test_a_decision_after_the_deadline_is_too_late(pool: StartPool, broker: ScriptedBroker) -> None:
    said: list[str] = []
    let_go = threading.Event()

    def handle(batch: Batch) -> None:
        let_go.wait()
        try:
            batch.ack(batch[0])
        except RuntimeError as error:
            said.append(str(error))

    async with pool(handle, is_async=False, consume_timeout_seconds=0.05, concurrency=2) as running:
        queue = running.queue(1)
        await eventually(done(queue), "the batch was sent back")
        let_go.set()
        await eventually(lambda: bool(said), "the call has ended")
    assert "exceeded consume_timeout" in said[0]
    assert handled(queue) == {"expired": 1}


@pytest.mark.parametrize("method", ["commit", "rollback"])
async def test_a_commit_or_rollback_of_a_part_after_the_handler_is_an_error(pool: StartPool, method: str) -> None:
    """A typed handler gets such a part for each message."""
    parts: list[Any] = []

    async def handle(batch: Batch) -> None:
        parts.append(batch.part([0]).part([0]))

    async with pool(handle, consume_message_batch_max_size=2, **ORDERLY, auto_commit=False) as running:
        queue = running.queue(2)
        await eventually(lambda: handled(queue) == {"acked": 2}, "all is settled")
        with pytest.raises(RuntimeError, match="too late"):
            getattr(parts[0], method)()


@pytest.mark.parametrize("mode", [{}, ORDERLY], ids=["plain", "orderly"])
async def test_a_commit_with_auto_commit_acknowledges_and_warns_once(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any]
) -> None:
    """As Java does with COMMIT in a group with autoCommit."""

    async def handle(batch: Batch) -> None:
        batch.commit()

    with capture_logs() as logs, bound_contextvars(group=f"group-{mode}"):
        async with pool(handle, **mode) as running:
            queue = running.queue(3)
            await eventually(lambda: done(queue)() or bool(queue.retrying), "all is settled")
    assert handled(queue) == {"acked": 3}
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["handler.commit_ignored"]


async def test_tasks_of_a_task_that_serves_all_calls_are_not_reported(pool: StartPool) -> None:
    """The first call starts that task, which starts another task for each later message."""
    waiting, ended = asyncio.Queue[asyncio.Future[None]](), list[asyncio.Task[None]]()
    serving: list[asyncio.Task[None]] = []

    async def serve() -> None:
        while True:
            confirmed = await waiting.get()
            ended.append(asyncio.create_task(asyncio.sleep(0.01)))
            confirmed.set_result(None)

    async def handle(batch: Batch) -> None:
        if not serving:
            serving.append(asyncio.create_task(serve()))
            return
        await waiting.put(confirmed := asyncio.get_running_loop().create_future())
        await confirmed

    with capture_logs() as logs:
        async with pool(handle, concurrency=1) as running:
            queue = running.queue(3)
            await eventually(lambda: done(queue)() and all(one.done() for one in ended), "all is done")
    serving[0].cancel()
    assert len(ended) == 2
    assert "handler.task_left" not in [line["event"] for line in logs]
