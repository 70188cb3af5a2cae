"""Calls Spark from an event loop. Each call blocks until the JVM answers, so it runs in a thread."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class SparkThread:
    """One thread, with one connection to the JVM. Calls run one after another.

    It is a daemon thread, so a hanging call delays no exit. If a caller is cancelled, its call keeps running.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        context = contextvars.copy_context()  # the fields bound to log lines
        threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True).start()

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread. Return its result, or raise its exception."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((work, future))
        return await future

    def end(self) -> None:
        """End the thread after the pending calls."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, future = job
            value, failure = None, None
            try:
                value = work()
            except BaseException as error:  # noqa: BLE001 the caller receives the exception
                failure = error
            try:
                future.get_loop().call_soon_threadsafe(_settle, future, value, failure)
            except RuntimeError:
                return  # the loop has ended, so no caller waits
            del job, work, future, value, failure


def _settle(future: asyncio.Future[Any], value: object, failure: BaseException | None) -> None:
    if future.done():
        return  # the caller was cancelled
    if failure is None:
        future.set_result(value)
    else:
        # a future does not accept StopIteration, and SystemExit would end the loop
        is_plain = isinstance(failure, Exception) and not isinstance(failure, StopIteration)
        future.set_exception(failure if is_plain else RuntimeError(repr(failure)))
