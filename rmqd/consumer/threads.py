"""Threads for synchronous handlers: daemon threads of our own, so that a hung call never delays the exit."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from rmqd.errors import RmqdError
from rmqd.handler import Batch, LoadedHandler


class HandlerNotAwaitedError(RmqdError):
    """What was taken for a synchronous handler gave an awaitable: nothing was handled, whatever the batch."""

    def __init__(self, name: str, result: object) -> None:
        super().__init__(
            f"handler {name} is called as a synchronous one, in a thread, and returned a {type(result).__name__} that "
            "nobody awaits, so it handled nothing; make the function that rmqd calls `async def` (the wrapper too, "
            "where a decorator stands around it), or let it run the work to its end before it returns"
        )


class HandlerThread:
    """Calls a synchronous handler, one batch at a time, without blocking the event loop."""

    def __init__(self, handler: LoadedHandler, number: int) -> None:
        self._handler = handler
        self._number = number
        self._line: _Line | None = None
        self._future: asyncio.Future[None] | None = None

    @property
    def is_calling(self) -> bool:
        """Whether a call is under way."""
        return self._future is not None and not self._future.done()

    async def call(self, batch: Batch) -> None:
        """Call the handler in the thread and wait for it; raises what it raises, and HandlerNotAwaitedError."""
        loop = asyncio.get_running_loop()
        if self._line is None:
            self._line = _Line(self._handler, self._number)
        self._future = future = loop.create_future()
        self._line.put((batch, future, loop))
        await future

    def abandon(self, came_back: Callable[[], None]) -> None:
        """Leave the call under way to its thread, and the next ones to a new thread.

        Whoever awaits `call` goes on without a result; `came_back` is told if the call ever ends.
        """
        future, line = self._future, self._line
        if future is None or line is None or future.done():
            return
        loop = future.get_loop()
        line.stop(lambda: _call_in(loop, came_back))
        self._line = None
        future.set_result(None)

    def stop(self) -> None:
        """Let the thread end after its call."""
        if self._line is not None:
            self._line.stop(lambda: None)
            self._line = None


async def call_handler(handler: LoadedHandler, batch: Batch) -> None:
    """Call a handler once, beside the group's slots. Raises what it raises, and HandlerNotAwaitedError."""
    if handler.is_async:
        await handler.handle(batch)
        return
    thread = HandlerThread(handler, 0)
    try:
        await thread.call(batch)
    finally:
        thread.stop()


async def call_start_or_stop(function: Callable[[], Any] | None) -> None:
    """Call a handler's start or stop; synchronous ones in a thread, as they may take their time."""
    if function is None:
        return
    if inspect.iscoroutinefunction(function):
        await function()
        return
    result = await asyncio.to_thread(function)
    if isinstance(result, Awaitable):
        await result


_Job = tuple[Batch, "asyncio.Future[None]", asyncio.AbstractEventLoop]


class _Line:
    """One thread and the line that it takes calls from."""

    def __init__(self, handler: LoadedHandler, number: int) -> None:
        self._handler = handler
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._at_end: Callable[[], None] = lambda: None
        # what the group binds to its log lines is bound in its handlers' threads too
        context = contextvars.copy_context()
        name = f"{handler.name}-{number}"
        threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True).start()

    def put(self, job: _Job) -> None:
        self._jobs.put(job)

    def stop(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            batch, future, loop = job
            error: BaseException | None = None
            try:
                self._call(batch)
            except BaseException as raised:  # noqa: BLE001  whatever a handler raises is its result
                error = raised
            _call_in(loop, lambda future=future, error=error: _resolve(future, error))  # type: ignore[misc]
            del batch, job
        self._at_end()

    def _call(self, batch: Batch) -> None:
        result: Any = self._handler.handle(batch)
        if result is not None and isinstance(result, Awaitable):
            if isinstance(result, Coroutine):
                result.close()  # it never began; Python would warn about it somewhere else
            raise HandlerNotAwaitedError(self._handler.name, result)


def _call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop has ended: nobody waits any more
        return


def _resolve(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        # a future takes no StopIteration, and SystemExit would end the process instead of the batch
        plain = isinstance(error, Exception) and not isinstance(error, StopIteration)
        future.set_exception(error if plain else RuntimeError(repr(error)))
