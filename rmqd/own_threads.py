"""Threads for what rmqd itself runs beside the event loop: files, name look-ups, imports, what takes CPU time.

asyncio's default executor is left to handlers: calls of theirs that hang would keep ours from beginning. For the same
reason there are as many threads as calls are under way at once. They are daemons, so that a call which hangs never
delays the exit, and one that had nothing to do for a while ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

T = TypeVar("T")

IDLE_SECONDS: Final = 30.0


async def in_own_thread(function: Callable[[], T]) -> T:
    """Call the function in a thread; return what it returns, raise what it raises.

    A caller that is cancelled does not wait: the call goes on to its end, and its result is dropped.
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


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call back in the loop's thread; if the loop has ended, nobody waits for it any more."""
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
                except ValueError:  # somebody has just taken it out, and gives it work
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
