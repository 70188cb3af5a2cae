"""One call of a handler: to its end, or cancelled at one of its awaits, as by a deadline or the end of a group."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any

from rmqd.consumer.handling.threads import HandlerNotAwaitedError, call_handler
from rmqd.handler_api import Batch
from rmqd.loaded_handler import LoadedHandler


class DidNotReturnError(Exception):
    """A call took so much longer than all others that it is abandoned."""


@dataclass(frozen=True, slots=True)
class Called:
    """The end of a call."""

    error: BaseException | None
    awaits: int
    """The number of awaits that suspended the call; 0 for a synchronous handler."""
    cut_in: str = ""
    """The author's line at which it was cancelled."""


async def call(
    handler: LoadedHandler, batch: Batch, cut_at: int, patience_seconds: float, is_authors: Callable[[str], bool]
) -> Called:
    """Call a handler. An asynchronous one is cancelled at its await number `cut_at`; 0: not at all.

    `is_authors` returns whether a module is from the handler's author. Raises HandlerNotAwaitedError.
    """
    counted = _Counted(handler, batch, cut_at, is_authors)
    work = counted.run() if handler.is_async else call_handler(handler, batch, lambda: None)
    # a separate task, so that cancelling it does not cancel the caller
    task = asyncio.create_task(_caught(work), context=contextvars.copy_context())
    done, _ = await asyncio.wait((task,), timeout=patience_seconds)
    if not done:
        task.cancel()
        await asyncio.wait((task,), timeout=patience_seconds / 4)
        return Called(
            DidNotReturnError(f"it did not return within {patience_seconds:.1f} s"), counted.awaits, counted.cut_in
        )
    error = asyncio.CancelledError() if task.cancelled() else task.result()
    if isinstance(error, HandlerNotAwaitedError):
        raise error
    return Called(error, counted.awaits, counted.cut_in)


async def _caught(work: Awaitable[object]) -> BaseException | None:
    try:
        await work
    except asyncio.CancelledError as error:
        return error
    except BaseException as error:  # noqa: BLE001 any exception of a handler is its result
        return error
    return None


class _Counted:
    """The call of an asynchronous handler, counting the awaits that suspend it."""

    def __init__(self, handler: LoadedHandler, batch: Batch, cut_at: int, is_authors: Callable[[str], bool]) -> None:
        self._handler = handler
        self._batch = batch
        self._cut_at = cut_at
        self._is_authors = is_authors
        self.awaits = 0
        self.cut_in = ""

    async def run(self) -> None:
        await self

    def __await__(self) -> Generator[Any, Any, Any]:
        called = self._handler.handle(self._batch)
        inner = called.__await__()
        raised: BaseException | None = None
        while True:
            try:
                waited_for = next(inner) if raised is None else inner.throw(raised)
            except StopIteration as end:
                return end.value
            self.awaits += 1
            if self.awaits == self._cut_at:
                task = asyncio.current_task()
                assert task is not None
                self.cut_in = _line(called, self._is_authors)
                task.cancel()  # asyncio applies it at this yield
            raised = None
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001 passed on to the handler
                raised = error


def _line(called: Any, is_authors: Callable[[str], bool]) -> str:
    """Return the author's innermost line at which a coroutine waits."""
    found = ""
    while (frame := getattr(called, "cr_frame", None)) is not None:
        if is_authors(frame.f_globals.get("__name__", "")):
            found = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        called = called.cr_await
    return found
