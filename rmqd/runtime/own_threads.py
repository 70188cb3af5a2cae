"""Threads for rmqd's own blocking calls: files, name lookups, imports, CPU-bound work.

rmqd does not use asyncio's default executor, because hanging calls of handlers may occupy all its threads. For the same
reason the number of threads is not limited. The threads are daemon threads, so a hung call never delays the exit. An
idle thread ends after a while.
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
is_call_abandoned: Final[contextvars.ContextVar[Callable[[], bool]]] = contextvars.ContextVar(
    "nobody_waits", default=lambda: False
)
"""Set in a thread that calls a handler: a function that returns whether this call was abandoned, for example because
the call expired. Another call then handles the messages that the abandoned call has not begun.
"""


async def call_in_thread(function: Callable[[], T]) -> T:
    """Call the function in a thread. Returns its result, or raises its exception.

    If the caller is cancelled, the call still runs to its end, and its result is dropped.
    """
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _OwnThread()
        thread.start()
    return await _called_in(thread, function)


class SingleThread:
    """A thread for blocking calls that must share one thread. The calls run one after another."""

    def __init__(self, name: str) -> None:
        self._thread = _OwnThread(name, is_shared=False)
        self._thread.start()

    async def call(self, function: Callable[[], T]) -> T:
        """Call the function in the thread. Returns its result, or raises its exception."""
        return await _called_in(self._thread, function)

    def end(self) -> None:
        """End the thread after the pending calls."""
        self._thread.work.put(None)


async def _called_in(thread: _OwnThread, function: Callable[[], T]) -> T:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    thread.work.put(partial(_call, partial(contextvars.copy_context().run, function), future, loop))
    result, error = await future
    try:
        if error is not None:
            raise error
        value: T = result
        return value
    finally:
        del error  # its traceback refers to this frame, so only the garbage collector could free both


async def call_sync_or_async(function: Callable[[], Any]) -> Any:
    """Call a function, in the event loop if it is asynchronous, else in a thread. Returns its result, or raises."""
    if inspect.iscoroutinefunction(function):
        return await function()
    result = await call_in_thread(function)
    return await result if isinstance(result, Awaitable) else result


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Schedule `callback` in the thread of an event loop. Does nothing if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


class _OwnThread(threading.Thread):
    def __init__(self, name: str = "rmqd", *, is_shared: bool = True) -> None:
        super().__init__(name=name, daemon=True)
        self.work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        """None ends the thread."""
        self._is_shared = is_shared

    def run(self) -> None:
        while True:
            try:
                work = self.work.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # a caller has just taken this thread, or the thread belongs to a SingleThread
                    continue
                return
            if work is None:
                return
            work()
            del work
            if self._is_shared:
                _idle.append(self)


# Each operation on this list is atomic, because event loops in several threads take threads from the list.
_idle: Final[list[_OwnThread]] = []
os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork


def _call(
    function: Callable[[], object],
    future: asyncio.Future[tuple[Any, BaseException | None]],
    loop: asyncio.AbstractEventLoop,
) -> None:
    try:
        outcome: tuple[object, BaseException | None] = function(), None
    except BaseException as error:  # noqa: BLE001  passed to the caller
        outcome = None, error
    call_in_loop(loop, partial(set_result_or_exception, future, outcome))


def set_result_or_exception(future: asyncio.Future[Any], result: object) -> None:
    """Set a result. Exceptions are set as results, because `set_exception` refuses some, and asyncio may log others."""
    if not future.done():
        future.set_result(result)
