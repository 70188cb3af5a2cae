"""A synchronous handler that returns an awaitable: the group fails, and nothing is acknowledged."""

from __future__ import annotations

import concurrent.futures
import enum
import functools
import gc
import itertools
import multiprocessing.pool
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Never

import pytest
import structlog

from rmqd import DeadLetter, Retry
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError, HandlerThread
from rmqd.consumer.stats.stats_snapshot import GroupSnapshot
from rmqd.handler_api.batch import Batch
from tests.consumer.blocks import QUEUE, block_of
from tests.consumer.groups import GROUP, TOPIC, handler_of
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually


class Coroutines:
    """An async handler behind a decorator that hides it; remembers whether it ever ran."""

    def __init__(self) -> None:
        self.ran = False

        async def handle(batch: Batch) -> None:
            self.ran = True

        @functools.wraps(handle)
        def wrapper(*arguments: Any) -> Any:
            return handle(*arguments)

        self.handle = wrapper


class Patient:
    """An awaitable that is not a coroutine."""

    def __await__(self) -> Generator[Any, None, None]:
        yield


async def call(handle: Callable[[Batch], Any]) -> None:
    """Call the handler once, in a new thread."""
    thread = HandlerThread(handler_of(handle, is_async=False), 0)
    try:
        await thread.call(Batch(block_of([0]).messages, QUEUE))
    finally:
        thread.stop()


async def test_a_handler_sees_the_context_of_its_group() -> None:
    """Log entries of a synchronous handler name the group, as with an asynchronous handler."""
    seen: list[dict[str, Any]] = []

    with structlog.contextvars.bound_contextvars(group=GROUP):
        await call(lambda batch: seen.append(structlog.contextvars.get_contextvars()))

    assert seen == [{"group": GROUP}]


async def test_a_returned_coroutine_is_an_error() -> None:
    """The error names the handler and the cure. The coroutine never runs, and Python does not warn about it."""
    decorated = Coroutines()

    with pytest.raises(HandlerNotAwaitedError) as raised:
        await call(decorated.handle)

    text = str(raised.value)
    assert "handler testing " in text
    assert "returned a coroutine" in text
    assert "`async def`" in text
    del raised
    gc.collect()  # would cause the warning, which is a failure here
    assert not decorated.ran


async def test_any_other_returned_awaitable_is_an_error() -> None:
    """A Patient has no method `close`."""
    with pytest.raises(HandlerNotAwaitedError, match="returned a Patient that was never awaited"):
        await call(lambda _: Patient())


@pytest.mark.parametrize("result", [None, 0, True, "done", ["x"], iter(())], ids=lambda result: type(result).__name__)
async def test_a_result_that_cannot_be_awaited_is_ignored(result: object) -> None:
    """The function returned, so its batch is handled."""
    await call(lambda _: result)


async def test_a_returned_coroutine_fails_the_group_and_settles_nothing(broker: ScriptedBroker) -> None:
    """No message is at fault: none is acknowledged, sent back or dead-lettered, and no offset moves."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, *[b"x"] * 40)
    snapshots: list[GroupSnapshot] = []

    async def run_until_it_fails() -> None:
        async with member(broker.peer.address, Coroutines().handle, is_async=False, concurrency=8) as running:
            await eventually(running.task.done, "the group has ended")
            snapshots.append(running.consumer.snapshot())

    with pytest.raises(ExceptionGroup) as raised:
        await run_until_it_fails()

    assert raised.group_contains(HandlerNotAwaitedError)
    [snapshot] = snapshots
    assert snapshot.state == "failed"
    assert snapshot.failure is not None
    assert "handler testing " in snapshot.failure
    assert set(snapshot.topics[0].handled.values()) == {0}
    assert (broker.sent_back, broker.sent) == ([], [])
    assert {offset for at, offset in broker.commits if at == queue} <= {0}
    assert broker.offsets.get((GROUP, queue), 0) == 0


async def test_an_async_handler_is_awaited(broker: ScriptedBroker) -> None:
    """The same decorated handler runs if an asynchronous function awaits it."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"x")
    decorated = Coroutines()

    async def handle(batch: Batch) -> None:
        result: Awaitable[None] = decorated.handle(batch)
        await result

    async with member(broker.peer.address, handle, persist_consumer_offset_interval_seconds=0.05):
        await broker.committed(GROUP, queue, 1)
    assert decorated.ran


async def test_a_missing_await_is_an_error(broker: ScriptedBroker) -> None:
    """The asynchronous handler returns a coroutine that never ran, so nothing is acknowledged."""
    [queue] = broker.create_topic(TOPIC)
    await broker.store(queue, b"x")
    decorated = Coroutines()

    async def handle(batch: Batch) -> Any:
        return decorated.handle(batch)

    async def run_until_it_fails() -> None:
        async with member(broker.peer.address, handle) as running:
            await eventually(running.task.done, "the group has ended")

    with pytest.raises(ExceptionGroup) as raised:
        await run_until_it_fails()
    assert raised.group_contains(HandlerNotAwaitedError)
    assert broker.offsets.get((GROUP, queue), 0) == 0
    assert not decorated.ran


@pytest.mark.parametrize(
    "make", [lambda: (number for number in range(3)), lambda: _generate()], ids=["generator", "async generator"]
)
async def test_a_returned_generator_is_an_error(make: Callable[[], Any]) -> None:
    """It would never run. A function with `yield` behind a decorator returns one."""
    with pytest.raises(HandlerNotAwaitedError, match="generator"):
        await call(lambda _: make())


async def _generate() -> AsyncGenerator[None, None]:
    yield


def _work(_: object) -> Never:
    pytest.fail("the work must not run")


@pytest.mark.parametrize(
    "make",
    [
        lambda: map(_work, [1]),
        lambda: filter(_work, [1]),
        lambda: itertools.starmap(_work, [(1,)]),
        lambda: itertools.chain(map(_work, [1])),
        lambda: [Coroutines().handle(1)],
        lambda: {"a": (Coroutines().handle(1), Coroutines().handle(2))},
        lambda: [concurrent.futures.Future[None]()],
        lambda: multiprocessing.Process(target=_work, args=(1,)),
    ],
)
async def test_work_that_did_not_run_is_an_error(make: Callable[[], Any]) -> None:
    """Lazy iterators, and coroutines or open futures in a collection."""
    with pytest.raises(HandlerNotAwaitedError):
        await call(lambda _: make())
    gc.collect()  # no warning of a coroutine that was never awaited


async def test_results_that_a_pool_still_computes_are_an_error() -> None:
    with multiprocessing.pool.ThreadPool(1) as pool, pytest.raises(HandlerNotAwaitedError, match="IMapIterator"):
        await call(lambda _: pool.imap(str, [1]))


async def test_a_list_of_done_futures_is_a_result_unless_one_failed() -> None:
    done, failed = concurrent.futures.Future[None](), concurrent.futures.Future[None]()
    done.set_result(None)
    failed.set_exception(ValueError("full"))

    await call(lambda _: [done])
    with pytest.raises(ValueError, match="full"):
        await call(lambda _: ({done, failed}, set()))  # like the result of asyncio.wait


class ConsumeStatus(enum.Enum):
    """The result of other clients' listeners."""

    RECONSUME_LATER = 1


class ConsumeResult(enum.Enum):
    """The result of a listener in RocketMQ's client for 5.x."""

    FAILURE = 1


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ExceptionGroup("", [Retry(1)]), ExceptionGroup),
        ([None, Retry(1)], TypeError),  # like gather(return_exceptions=True)
        ({"a": [DeadLetter]}, TypeError),
        (ConsumeStatus.RECONSUME_LATER, TypeError),
        ([ConsumeResult.FAILURE], TypeError),
    ],
)
async def test_a_returned_decision_is_an_error_even_in_a_group(result: object, expected: type[Exception]) -> None:
    with pytest.raises(expected):
        await call(lambda _: result)
