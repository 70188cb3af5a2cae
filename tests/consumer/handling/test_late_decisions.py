"""Decisions after the handler has returned, and tasks that outlive it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.handler_api.batch import Batch
from tests.consumer.pool import StartPool, done, handled
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually

ORDERLY: dict[str, Any] = {"consume_mode": "orderly", "suspend_current_queue_time_seconds": 0.01}


def fail(batch: Batch) -> None:
    raise ValueError


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "act",
    [
        lambda batch: None,
        lambda batch: batch.ack(batch[0]),
        lambda batch: batch.retry(batch[0]),
        lambda batch: batch.wait_behind(batch[0]),
        fail,
    ],
    ids=["returns", "acknowledges", "retries", "waits", "fails"],
)
@pytest.mark.parametrize("mode", [{}, ORDERLY, {**ORDERLY, "auto_commit": False}], ids=["plain", "orderly", "manual"])
async def test_a_decision_after_the_handler_has_returned_is_an_error(
    pool: StartPool, broker: ScriptedBroker, mode: dict[str, Any], act: Callable[[Batch], None], size: int
) -> None:
    """Each kind of late decision raises, is logged as a warning, and has no effect."""
    batches: list[Batch] = []

    async def handle(batch: Batch) -> None:
        batches.append(batch)
        if mode.get("auto_commit") is False:
            batch.commit()
        if len(batches) == 1:
            act(batch)

    async with pool(handle, consume_message_batch_max_size=size, **mode) as running:
        queue = running.queue(size)
        await eventually(done(queue), "all is settled")
        before = handled(queue)
        late: list[Callable[[Batch], object]] = [
            lambda batch: batch.dead_letter(batch[0], "why"),
            lambda batch: batch.retry(batch[-1]),
            lambda batch: setattr(batch, "ack_index", -1),
            *([lambda batch: batch.rollback()] if mode.get("auto_commit") is False else []),
        ]
        with capture_logs() as logs:
            for decide in late:
                with pytest.raises(RuntimeError, match=r"too late: .*; decide before the handler returns"):
                    decide(batches[0])
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["decision.too_late"] * len(late)
    assert handled(queue) == before


async def step() -> None:
    await asyncio.sleep(0)


def within(package: str, function: Any) -> Any:
    """The function as if it were in a module of this package."""
    names = {**function.__globals__, "__name__": f"{package}.module"}
    return FunctionType(function.__code__, names, closure=function.__closure__)


@pytest.mark.parametrize(
    ("creator", "begin", "name"),
    [
        ("shop", lambda: asyncio.create_task(step()), "step"),
        ("shop", lambda: asyncio.create_task(asyncio.wait_for(step(), 5)), "wait_for"),
        ("shop", lambda: asyncio.gather(step()), "step"),
        ("library", lambda: asyncio.create_task(step()), ""),
        ("rmqd", lambda: asyncio.create_task(step()), ""),
    ],
)
@pytest.mark.parametrize(("awaited", "is_nested"), [(0, False), (2, False), (3, False), (0, True)])
async def test_a_task_that_outlives_its_handler_is_reported_once(
    pool: StartPool, monkeypatch: pytest.MonkeyPatch, creator: str, begin: Any, name: str, awaited: int, is_nested: bool
) -> None:
    """Its message is acknowledged before the work is done. Only the first tasks of a handler's package are watched."""
    monkeypatch.setattr("rmqd.consumer.handling.watched_tasks.MAX_WATCHED_TASKS", 3)
    begin, begun = within(creator, begin), list[asyncio.Future[Any]]()

    async def create() -> None:
        begun.append(begin())

    async def handle(batch: Batch) -> None:
        await (asyncio.create_task(create()) if is_nested else create())
        if batch[0].queue_offset < awaited:
            await begun[-1]

    handle = within("rmqd" if creator == "rmqd" else "shop", handle)
    with capture_logs() as logs:
        async with pool(handle, concurrency=1) as running:
            queue = running.queue(5)
            await eventually(lambda: done(queue)() and all(one.done() for one in begun), "all is done")
    told = [line["task"] for line in logs if line["event"] == "handler.task_left"]
    assert told == ([name] if name and awaited < 3 else [])
