"""Threads for rmqd's own blocking calls: files, name look-ups, imports, work that takes CPU time.

asyncio's default executor is left to handlers: if their calls hang in it, ours could not begin. For the same reason
there are as many threads as calls are under way at once. They are daemon threads, so that a call that hangs never
delays the exit. An idle thread ends after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

IDLE_SECONDS: Final = 30.0
nobody_waits: Final[contextvars.ContextVar[Callable[[], bool]]] = contextvars.ContextVar(
    "nobody_waits", default=lambda: False
)
"""Tells, in a thread that calls a handler, whether the call was left to itself, as past its deadline. What it has not
begun with by then, others handle."""


async def in_own_thread(function: Callable[[], T]) -> T:
    """Call the function in a thread. Returns what it returns, and raises what it raises.

    If the caller is cancelled, the call goes on to its end in its thread, and its result is dropped.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    work = partial(_call, partial(contextvars.copy_context().run, function), future, loop)
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _OwnThread()
        thread.start()
    thread.work.put(work)
    result, error = await future
    try:
        if error is not None:
            raise error
        value: T = result
        return value
    finally:
        del error  # its traceback leads to this frame: only the garbage collector would free them


async def call_either(function: Callable[[], Any]) -> Any:
    """Call a function that may be synchronous, then in a thread, or asynchronous; returns and raises what it does."""
    if inspect.iscoroutinefunction(function):
        return await function()
    result = await in_own_thread(function)
    return await result if isinstance(result, Awaitable) else result


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call back in the loop's thread. Does nothing if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


class _OwnThread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="rmqd", daemon=True)
        self.work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self) -> None:
        while True:
            try:
                work = self.work.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # a caller has just taken this thread out of the list, and gives it work
                    continue
                return
            work()
            del work
            _idle.append(self)


_idle: Final[list[_OwnThread]] = []  # each operation on it is atomic: loops of several threads take threads out
os.register_at_fork(after_in_child=_idle.clear)  # threads do not go along


def _call(
    function: Callable[[], object],
    future: asyncio.Future[tuple[Any, BaseException | None]],
    loop: asyncio.AbstractEventLoop,
) -> None:
    try:
        outcome: tuple[object, BaseException | None] = function(), None
    except BaseException as error:  # noqa: BLE001  raised by who waits
        outcome = None, error
    call_in_loop(loop, partial(_resolve, future, outcome))


def _resolve(
    future: asyncio.Future[tuple[Any, BaseException | None]], outcome: tuple[object, BaseException | None]
) -> None:
    if not future.done():
        future.set_result(outcome)
