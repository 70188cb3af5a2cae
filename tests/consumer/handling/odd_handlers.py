"""Odd things that handlers do with one message, and exceptions that they raise."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Never

from rmqd import AlreadyHandled, Batch, DeadLetter, Retry

LONE_SURROGATE = "unknown city \ud83d"
SEPARATORS = "a\x01b\x02c"


class NoText(Exception):
    """An exception whose `__str__` and `__repr__` raise."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NoTextToSpeakOf(Exception):
    """An exception whose `__str__` and `__repr__` raise KeyboardInterrupt."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class NoAttributes(Exception):
    """An exception whose `__notes__` raises. Printing a traceback reads it."""

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError("no notes")


class Panic(BaseException):
    """A BaseException like pyo3's PanicException."""


class Poison(DeadLetter):
    """A DeadLetter whose constructor does not call `super().__init__`."""

    def __init__(self, order: int) -> None:
        self.order = order


class Vague(DeadLetter):
    """A DeadLetter whose `reason` raises."""

    @property
    def reason(self) -> str:
        raise RuntimeError("no reason")

    @reason.setter
    def reason(self, value: str) -> None: ...


class Later(Retry):
    """A Retry whose constructor does not call `super().__init__`."""

    def __init__(self) -> None:
        pass


class Known(AlreadyHandled):
    """An AlreadyHandled whose constructor does not call `super().__init__`."""

    def __init__(self) -> None:
        pass


def raising(error: BaseException | type[BaseException]) -> Callable[[Batch], Never]:
    """Return a handler that raises this error."""

    def handle(batch: Batch) -> Never:
        raise error

    return handle


def made(make: Callable[[], BaseException]) -> Callable[[Batch], Never]:
    """Return a handler that creates and raises an error. Creating it may raise too."""

    def handle(batch: Batch) -> Never:
        raise make()

    return handle


def returning(value: object) -> Callable[[Batch], object]:
    """Return a handler that returns this value."""
    return lambda batch: value


def handled_before_in_a_group(batch: Batch) -> None:
    raise ExceptionGroup("x", [AlreadyHandled(batch[0])])


def its_own_cause() -> BaseException:
    error, other = ValueError("one"), ValueError("two")
    error.__cause__, other.__cause__ = other, error
    return error


def odd_syntax_error() -> BaseException:
    error = SyntaxError("bad", ("file", 1, 1, "text"))
    error.lineno = error.offset = error.text = object()  # type: ignore[assignment]
    return error


def nested_groups() -> BaseException:
    error: Exception = ValueError("the innermost")
    for _ in range(2000):
        error = ExceptionGroup("group", [error])
    return error


def recurse(batch: Batch) -> None:
    recurse(batch)


def fail_after_ack(batch: Batch) -> None:
    batch.ack(batch[0])
    raise ValueError("after that")


def change_its_mind(batch: Batch) -> None:
    batch.dead_letter(batch[0], "at first")
    batch.retry(batch[0], 1)
    batch.ack(batch[0])


def ack_index(batch: Batch) -> None:
    batch.ack_index = -1


def foreign(batch: Batch) -> None:
    batch.ack(object())  # type: ignore[arg-type]


def spoiling(change: Callable[[dict[Any, Any]], object], error: BaseException) -> Callable[[Batch], Never]:
    """Return a handler that changes the message's properties and raises."""

    def handle(batch: Batch) -> Never:
        change(batch[0].properties)
        raise error

    return handle


def exit_process(batch: Batch) -> None:
    sys.exit("configuration missing")


def loop_in_a_thread(batch: Batch) -> None:
    asyncio.run(asyncio.sleep(0))


def leave_a_thread(batch: Batch) -> None:
    threading.Thread(target=threading.Event().wait, args=(1,), daemon=True).start()


def own_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def cancel_itself(batch: Batch) -> None:
    own_task().cancel()
    await asyncio.sleep(1)


async def cancel_itself_and_return(batch: Batch) -> None:
    own_task().cancel()


async def cancel_itself_and_fail(batch: Batch) -> None:
    own_task().cancel()
    raise ValueError("and more")


async def cancel_itself_often(batch: Batch) -> None:
    for _ in range(5):
        own_task().cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
    own_task().cancel()


async def cancel_and_take_back(batch: Batch) -> None:
    own_task().cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    for _ in range(3):
        own_task().uncancel()


async def hand_made_timeout(batch: Batch) -> None:
    asyncio.get_running_loop().call_later(0.01, own_task().cancel)
    await asyncio.sleep(5)


async def late_timeout(batch: Batch) -> None:
    """The handler forgets to cancel its timeout."""
    asyncio.get_running_loop().call_later(0.02, own_task().cancel)


async def cancelled_by_another(batch: Batch) -> None:
    task = own_task()

    async def cancel() -> None:
        task.cancel()

    _keep(asyncio.create_task(cancel()))
    await asyncio.sleep(5)


async def let_out_a_cancellation(batch: Batch) -> None:
    task = asyncio.create_task(asyncio.sleep(9))
    task.cancel()
    await task


async def time_out(batch: Batch) -> None:
    async with asyncio.timeout(0.01):
        await asyncio.sleep(5)


async def fail_in_a_group_of_tasks(batch: Batch) -> None:
    async def fail() -> None:
        raise ValueError("in a task")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())


async def stop_the_loop(batch: Batch) -> None:
    asyncio.get_running_loop().stop()


async def stop_the_loop_and_wait(batch: Batch) -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0.02)


async def close_the_loop(batch: Batch) -> None:
    asyncio.get_running_loop().close()


async def run_in_the_loop(batch: Batch) -> None:
    work = asyncio.sleep(0)
    try:
        asyncio.run(work)
    finally:
        work.close()


async def set_another_loop(batch: Batch) -> None:
    asyncio.set_event_loop(None)


async def break_the_exception_handler(batch: Batch) -> None:
    def fail(*_: object) -> Never:
        raise RuntimeError("in the loop's exception handler")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(fail)
    loop.call_exception_handler({"message": "whatever"})
    loop.set_exception_handler(None)


async def take_the_executor(batch: Batch) -> None:
    """Set a default executor that is shut down."""
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    asyncio.get_running_loop().set_default_executor(executor)


async def fill_the_executor(batch: Batch) -> None:
    """Fill all threads of the executor with calls that hang."""
    for _ in range(64):
        _keep(asyncio.ensure_future(asyncio.to_thread(HANGING.wait)))


def leaving_a_task(error: BaseException) -> Callable[[Batch], Awaitable[None]]:
    """Return a handler that leaves a task which raises."""

    async def fail() -> None:
        raise error

    async def handle(batch: Batch) -> None:
        task = asyncio.create_task(fail())
        await asyncio.sleep(0.01)
        with contextlib.suppress(BaseException):
            task.exception()  # else Python reports it when the test is long over

    return handle


async def leave_a_callback(batch: Batch) -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 3)


def _keep(task: asyncio.Future[Any]) -> None:
    _kept.add(task)
    task.add_done_callback(_kept.discard)


_kept: set[asyncio.Future[Any]] = set()
HANGING = threading.Event()

Odd = Callable[[Batch], object]
OddCoroutine = Callable[[Batch], Coroutine[Any, Any, None] | Awaitable[None]]
