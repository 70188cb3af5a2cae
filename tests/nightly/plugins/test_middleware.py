"""Middleware: around every call of a handler, in the order of the configuration.

The core of these tests is in tests/plugins/test_middleware.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rmqd import Batch
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError
from rmqd.errors import ConfigError
from rmqd.testing import RocketMQ
from tests.plugins.test_middleware import Run, events
from tests.testing.conftest import rocketmq as rocketmq

__all__ = ["events"]


def test_a_batch_that_is_not_passed_on_is_acknowledged(rocketmq: RocketMQ, run_handler: Run, events: list[str]) -> None:
    async def handle(batch: Batch) -> None:
        events.append("handle")

    rocketmq.send("orders", "one")
    result = run_handler(handle, topic="orders", group="mailer", middleware=["around:drop"])

    assert (events, len(result.acked)) == ([], 1)


def test_decisions_about_parts_are_decisions_about_the_batch(
    rocketmq: RocketMQ, run_handler: Run, events: list[str]
) -> None:
    async def handle(batch: Batch) -> None:
        events.append(f"{batch[0].keys} of {len(batch)}")
        if not batch[0].reconsume_times and batch[0].keys == "1":
            batch.retry(batch[0])

    rocketmq.create_topic("orders")
    for number in range(2):
        rocketmq.send("orders", "one", keys=str(number))
    run_handler(handle, topic="orders", group="mailer", middleware=["around:splits"], consume_message_batch_max_size=2)

    assert events == ["0 of 1", "1 of 1", "1 of 1"]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_a_coroutine_that_is_not_awaited_is_detected_with_middleware(
    rocketmq: RocketMQ, run_handler: Run, events: list[str], is_async: bool
) -> None:
    async def work() -> None:
        events.append("work")

    def handle(batch: Batch) -> object:
        return work()

    async def handle_async(batch: Batch) -> object:
        return work()

    rocketmq.send("orders", "one")
    handler, name = (handle_async, "passes_on") if is_async else (handle, "drops_result")
    with pytest.raises(HandlerNotAwaitedError, match="returned a coroutine that was never awaited"):
        run_handler(handler, topic="orders", group="mailer", middleware=[f"around:{name}"])
    assert events == []


def test_middleware_that_does_not_wait_for_the_handler_is_an_error(
    rocketmq: RocketMQ, run_handler: Run, events: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def limits(batch: Batch, call_next: Callable[[Batch], Coroutine[Any, Any, None]]) -> None:
        await asyncio.wait([asyncio.create_task(call_next(batch))], timeout=0.01)

    async def handle(batch: Batch) -> None:
        await asyncio.sleep(1)
        events.append("handled")

    monkeypatch.setattr("around.limits", limits, raising=False)

    rocketmq.send("orders", "one")
    with pytest.raises(HandlerNotAwaitedError, match="the middleware around:limits called call_next without awaiting"):
        run_handler(handle, topic="orders", group="mailer", middleware=["around:limits"])
    assert events == []


def test_a_constructors_exception_is_raised_unchanged(run_handler: Run) -> None:
    async def handle(batch: Batch) -> None: ...

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'server'"):
        run_handler(handle, topic="orders", group="mailer", middleware=["around:Needs"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("around:one", r"around:one cannot be called with \(batch, call_next\); expected a function of"),
        ("around:Bare", r"around:Bare cannot be called with \(batch, call_next\)"),
        ("around:number", r"around:number cannot be called with \(batch, call_next\)"),
        (
            "around:of_threads",
            "is written with def, but the handler with async def; expected async def",
        ),
        ("around:none", "the module around has no none"),
        ("nowhere:none", "the module nowhere cannot be imported"),
    ],
)
def test_the_error_for_invalid_middleware_names_its_key(run_handler: Run, name: str, said: str) -> None:
    async def handle(batch: Batch) -> None: ...

    with pytest.raises(ConfigError, match=rf"groups.mailer.handler.middleware\[?.?1\]?: .*{said}"):
        run_handler(handle, topic="orders", group="mailer", middleware=["around:outer", name])


PARTS = """
async def first_only(batch, call_next):
    await call_next(batch.part([0]))

async def new_batch(batch, call_next):
    await call_next(type(batch)(batch[:1], batch.message_queue))

async def none_left(batch, call_next):
    await call_next(batch.part([]))

def first_in_thread(batch, call_next):
    call_next(batch.part([0]))

async def skips(batch, call_next):
    for message in batch[1:]:
        batch.ack(message)
    await call_next(batch.part([0]))
"""


@pytest.mark.parametrize("name", ["first_only", "new_batch", "first_in_thread", "skips"])
def test_a_message_that_is_not_passed_on_is_not_acknowledged(
    rocketmq: RocketMQ, run_handler: Run, tmp_path: Path, name: str
) -> None:
    """The middleware `skips` acknowledges the second message; the others drop it. The first is retried once."""
    (tmp_path / "parts.py").write_text(PARTS)
    seen: list[str | None] = []

    def handle(batch: Batch) -> None:
        seen.append(batch[0].keys)
        if seen == ["0"]:
            batch.retry(batch[0], delay_level=1)  # redelivered before the second message

    async def handle_async(batch: Batch) -> None:
        handle(batch)

    rocketmq.create_topic("orders")
    for key in "01":
        rocketmq.send("orders", "one", keys=key)
    options = {"topic": "orders", "group": "mailer", "consume_message_batch_max_size": 2}
    handler = handle if name == "first_in_thread" else handle_async
    result = run_handler(handler, middleware=[f"parts:{name}"], **options)

    told = f"the middleware parts:{name} did not give call_next a message; to skip it, call batch.ack(message)"
    second = result.attempts_of("1")
    assert sorted(key or "" for key in seen) == (["0", "0"] if name == "skips" else ["0", "0", "1"])
    assert [one.outcome for one in result.attempts_of("0")] == ["retried", "acked"]
    assert [one.outcome for one in second] == (["acked"] if name == "skips" else ["retried", "acked"])
    assert (told in str(second[0].error)) == (name != "skips")


def test_passing_on_an_empty_part_does_not_acknowledge(rocketmq: RocketMQ, run_handler: Run, tmp_path: Path) -> None:
    async def handle(batch: Batch) -> None: ...

    (tmp_path / "parts.py").write_text(PARTS)
    rocketmq.send("orders", "one")
    result = run_handler(handle, topic="orders", group="mailer", middleware=["parts:none_left"], max_reconsume_times=1)

    assert [one.outcome for one in result.attempts] == ["retried", "dead_lettered"]
