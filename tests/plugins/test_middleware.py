"""Middleware: around every call of a handler, in the order of the configuration."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqd import Batch
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError
from rmqd.handler_api.batch import LoadedHandler
from rmqd.plugins.strategies import with_middleware
from rmqd.testing import RocketMQ, RunResult, make_batch, make_message
from tests.testing.conftest import rocketmq as rocketmq

Run = Callable[..., RunResult]

CODE = """
from copy import copy
from threading import Event, Thread

events = []
has_begun = Event()

async def outer(batch, call_next):
    events.append("outer")
    try:
        await call_next(batch)
    finally:
        events.append("outer ends")

class Timing:
    async def start(self):
        events.append("start")
    async def __call__(self, batch, call_next):
        events.append(f"timing of {len(batch)}")
        return await call_next(batch)
    def stop(self):
        events.append("stop")

async def drop(batch, call_next):
    pass

async def forgets(batch, call_next):
    call_next(batch)

async def passes_on(batch, *more):
    await more[0](batch)

async def decides(batch, call_next):
    batch.dead_letter(batch[0], "known")
    await call_next(batch)

def decides_in_thread(batch, call_next):
    batch.dead_letter(batch[0], "known")
    call_next(batch)

async def splits(batch, call_next):
    for index in range(len(batch)):
        await call_next(batch.part([index]))

async def copies(batch, call_next):
    await call_next(type(batch)([copy(message) for message in batch], batch.message_queue))

async def copies_and_decides(batch, call_next):
    copies = type(batch)([copy(message) for message in batch], batch.message_queue)
    await call_next(copies)
    for index, decision in copies.decisions().items():
        if decision.outcome.name == "RETRY":
            batch.retry(batch[index])

def copies_in_thread(batch, call_next):
    call_next(type(batch)([copy(message) for message in batch], batch.message_queue))

async def copies_first(batch, call_next):
    await call_next(type(batch)([copy(batch[0])], batch.message_queue))

def submits(batch, call_next):
    Thread(target=call_next, args=(batch,), daemon=True).start()
    has_begun.wait()

def submits_and_decides(batch, call_next):
    submits(batch, call_next)
    batch.dead_letter(batch[0])

def drops_result(batch, call_next):
    call_next(batch)

def of_threads(batch, call_next):
    events.append("thread")
    return call_next(batch)

def one(batch): ...
class Bare: ...
class Needs:
    def __init__(self, server): ...
    async def __call__(self, batch, call_next): ...
number = 7
"""


@pytest.fixture(autouse=True)
def events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The events that the middleware of the module `around` records; the module is in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    (tmp_path / "around.py").write_text(CODE)
    sys.path.insert(0, str(tmp_path))
    module: Any = __import__("around")
    yield module.events
    del sys.modules["around"]
    sys.path[:] = path


def test_the_first_middleware_is_the_outermost(rocketmq: RocketMQ, run_handler: Run, events: list[str]) -> None:
    async def handle(batch: Batch) -> None:
        events.append("handle")
        if not batch[0].reconsume_times:
            raise ValueError("at first")

    rocketmq.send("orders", "one")
    result = run_handler(handle, topic="orders", group="mailer", middleware=["around:outer", "around:Timing"])

    assert events == ["start", *["outer", "timing of 1", "handle", "outer ends"] * 2, "stop"]
    assert [attempt.outcome for attempt in result.attempts] == ["retried", "acked"]


def test_a_synchronous_handler_has_synchronous_middleware(
    rocketmq: RocketMQ, run_handler: Run, events: list[str]
) -> None:
    rocketmq.send("orders", "one")
    run_handler(lambda batch: events.append("handle"), topic="orders", group="mailer", middleware=["around:of_threads"])

    assert events == ["thread", "handle"]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_messages_decided_by_middleware_are_not_passed_on(rocketmq: RocketMQ, run_handler: Run, is_async: bool) -> None:
    seen: list[list[str]] = []

    def handle(batch: Batch) -> None:
        seen.append([message.keys or "" for message in batch])
        batch.ack_index = len(batch) - 1

    async def handle_async(batch: Batch) -> None:
        handle(batch)

    rocketmq.create_topic("orders")
    for number in range(4):
        rocketmq.send("orders", "one", keys=str(number))
    handler, name = (handle_async, "decides") if is_async else (handle, "decides_in_thread")
    options = {"topic": "orders", "group": "mailer", "consume_message_batch_max_size": 3}
    result = run_handler(handler, middleware=[f"around:{name}"] * 2, **options)

    assert seen == [["2"]]  # the fourth message is a batch alone, and middleware decides about it
    assert sorted(letter.keys or "" for letter in result.dead_letters) == ["0", "1", "3"]


@pytest.mark.parametrize("names", [["forgets"], ["passes_on", "forgets"], ["forgets", "passes_on"]], ids="-".join)
def test_a_middleware_that_forgets_to_await_acknowledges_nothing(
    rocketmq: RocketMQ, run_handler: Run, events: list[str], names: list[str]
) -> None:
    async def handle(batch: Batch) -> None:
        events.append("handle")

    rocketmq.send("orders", "one")
    with pytest.raises(
        HandlerNotAwaitedError, match="the middleware around:forgets called call_next without awaiting it"
    ):
        run_handler(handle, topic="orders", group="mailer", middleware=[f"around:{name}" for name in names])

    run_handler(handle, topic="orders", group="mailer")
    assert events == ["handle"]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_a_lost_decision_about_a_created_message_does_not_acknowledge(
    rocketmq: RocketMQ, run_handler: Run, is_async: bool
) -> None:
    """Without a lost decision, the messages are acknowledged as usual."""

    def handle(batch: Batch) -> None:
        if not batch[0].reconsume_times:
            batch.retry(batch[0])

    async def handle_async(batch: Batch) -> None:
        handle(batch)

    rocketmq.send("orders", "one")
    handler, name = (handle_async, "around:copies") if is_async else (handle, "around:copies_in_thread")
    result = run_handler(handler, topic="orders", group="mailer", middleware=[name])

    assert [attempt.outcome for attempt in result.attempts] == ["retried", "acked"]
    assert f"messages that the middleware {name} created have no effect" in str(result.attempts[0].error)


def test_a_middleware_may_apply_decisions_about_created_messages(rocketmq: RocketMQ, run_handler: Run) -> None:
    bodies: list[bytes] = []

    async def handle(batch: Batch) -> None:
        bodies.extend(message.body for message in batch)
        if not batch[0].reconsume_times:
            batch.retry(batch[0])

    rocketmq.create_topic("orders")
    rocketmq.send("orders", "one")
    rocketmq.send("orders", "two")
    both = {"consume_message_batch_max_size": 2, "consume_message_batch_max_wait": "1s"}
    run_handler(handle, topic="orders", group="mailer", middleware=["around:copies_and_decides"], **both)
    assert bodies == [b"one", b"two", b"one"]


def test_a_created_batch_of_some_messages_does_not_acknowledge_the_others(rocketmq: RocketMQ, run_handler: Run) -> None:
    bodies: list[bytes] = []

    async def handle(batch: Batch) -> None:
        bodies.extend(message.body for message in batch)

    rocketmq.create_topic("orders")
    rocketmq.send("orders", "one")
    rocketmq.send("orders", "two")
    both = {"consume_message_batch_max_size": 2, "consume_message_batch_max_wait": "1s"}
    run_handler(handle, topic="orders", group="mailer", middleware=["around:copies_first"], **both)
    assert bodies == [b"one", b"two"]


async def test_messages_at_the_same_offset_are_passed_on_separately() -> None:
    """With POP, a batch may have a message twice after an operator's reset."""
    handled: list[bytes] = []

    async def handle(batch: Batch) -> None:
        handled.extend(message.body for message in batch)

    batch = make_batch(make_message("first", queue_offset=5), make_message("second", queue_offset=5))
    await with_middleware(LoadedHandler("", handle, True, None, None), ["around:splits"]).handle(batch)
    assert handled == [b"first", b"second"]
    assert not batch.decisions()


def test_a_middleware_that_leaves_call_next_to_a_thread_acknowledges_nothing(
    rocketmq: RocketMQ, run_handler: Run
) -> None:
    release = threading.Event()

    def handle(_: Batch) -> None:
        sys.modules["around"].has_begun.set()
        release.wait()

    rocketmq.send("orders", "one")
    options = {"topic": "orders", "group": "mailer"}
    try:
        with pytest.raises(HandlerNotAwaitedError, match="around:submits returned before its call_next"):
            run_handler(handle, middleware=["around:submits"], **options)
        result = run_handler(handle, middleware=["around:submits_and_decides"], **options)
        assert [attempt.outcome for attempt in result.attempts] == ["dead_lettered"]
    finally:
        release.set()
