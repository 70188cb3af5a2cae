"""Threads for synchronous handlers. They are daemon threads, so a hung call never delays the exit of the process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import itertools
import queue
import threading
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

import structlog

from rmqd.errors import RmqdError
from rmqd.handler_api.batch import Batch, LoadedHandler, raise_returned_decision
from rmqd.handler_api.decisions import flattened_members
from rmqd.runtime.clock import Clock
from rmqd.runtime.own_threads import call_in_loop, call_sync_or_async, is_call_abandoned, set_result_or_exception
from rmqd.runtime.plain_text import class_name, describe

log = structlog.get_logger(__name__)

CANCEL_TIMEOUT_SECONDS: Final = 1.0  # how long a cancelled `start` or `stop` may take to end
_FUTURES: Final = (asyncio.Future, concurrent.futures.Future)
_LAZY: Final = (map, filter, zip, enumerate, *(one for one in vars(itertools).values() if isinstance(one, type)))
_FUNCTIONS: Final = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, partial)
_UNDONE: Final = (Awaitable, Generator, AsyncGenerator, *_FUTURES, *_LAZY)


class UnusableHandlerError(RmqdError):
    """The handler cannot handle any message. This ends the group, because retries would dead-letter every message."""


class HandlerNotAwaitedError(UnusableHandlerError):
    """A handler or middleware returned work that was never run, for instance a coroutine. No message was handled."""


class HandlerEndedError(RmqdError):
    """A handler's `start` or `stop` cancelled itself, or raised an exception such as SystemExit."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the handler could not be started or stopped: {what}")


def check_result(result: object, handler_name: str) -> None:
    """Raise HandlerNotAwaitedError if a handler returned unfinished work, such as a coroutine, future or generator.

    Also raises this error for unfinished work in a collection, and for a function or handler as the result. If the
    handler returned a decision instead of raising it, raises the decision. If a future in a collection has failed
    (`asyncio.wait`), raises its exception. Other results have no meaning.
    """
    raise_returned_decision(result)
    members = list(flattened_members(result))
    undone = [one for one in members if _is_left(one, is_result=one is result)]
    for one in undone:
        if isinstance(one, Coroutine | Generator):
            one.close()  # otherwise Python warns about a never-awaited coroutine at an unrelated place
    if undone:
        ended, step = (
            "awaited",
            "write the handler, and each decorator around it, with `async def` and await the work, or finish the work "
            "before the handler returns",
        )
        if _is_function(undone[0]):
            ended, step = "called", "call it, add the parentheses of its decorator, or name the handler itself"
        raise HandlerNotAwaitedError(
            f"handler {handler_name} returned a {class_name(undone[0])} that was never {ended}, so it handled nothing; "
            f"{step}"
        )
    for one in members:
        if isinstance(one, _FUTURES):
            one.result()


def _is_left(one: Any, *, is_result: bool) -> bool:
    """Return whether an object in a result, or the result itself, is unfinished work or a function to call."""
    if all(hasattr(type(one), name) for name in ("ident", "is_alive")):  # a thread, or a process of multiprocessing
        return one.ident is None or bool(one.is_alive())
    if type(one).__module__ == "multiprocessing.pool":
        return not getattr(one, "ready", lambda: not isinstance(one, Iterator))()  # an `imap` iterator may not be done
    if isinstance(one, _FUTURES) and one.done():
        return is_result
    return isinstance(one, _UNDONE) or (is_result and _is_function(one))


def _is_function(result: object) -> bool:
    return isinstance(result, _FUNCTIONS) or callable(getattr(type(result), "handle", None))  # or a handler


def _log_mistake(batch: Batch, mistake: Literal["commit", "late decision"]) -> None:
    if mistake == "commit":
        _warn_of_commit(batch.message_queue.topic, structlog.contextvars.get_contextvars().get("group"))
    else:
        log.warning("decision.too_late", queue=str(batch.message_queue), msg_id=batch[0].msg_id, messages=len(batch))


@functools.cache  # warns only once for each topic and group
def _warn_of_commit(topic: str, _group: str | None) -> None:
    log.warning("handler.commit_ignored", topic=topic)


Batch.on_mistake = _log_mistake  # type: ignore[assignment,method-assign]


def wrap_handler(handler: LoadedHandler, around: Callable[..., Any]) -> LoadedHandler:
    """Return the handler with `around` in place of its `handle`, for hooks, middleware and other code around calls.

    `around(call_next, batch)` is asynchronous if the handler is. It calls `call_next(batch)`, the original handler.
    """
    call_next = handler.handle
    return replace(handler, handle=functools.update_wrapper(partial(around, call_next), call_next))


def with_result_checks(handler: LoadedHandler) -> LoadedHandler:
    """Return the handler with a `handle` that also calls `check_result`, for wrappers that need the call's result."""

    def around(call_next: Callable[[Batch], Any], batch: Batch) -> Any:
        result = call_next(batch)
        check_result(result, handler.name)
        return result

    async def around_async(call_next: Callable[[Batch], Any], batch: Batch) -> Any:
        result = await call_next(batch)
        check_result(result, handler.name)
        return result

    return wrap_handler(handler, around_async if handler.is_async else around)


class HandlerThread:
    """Calls a synchronous handler, one batch at a time, without blocking the event loop."""

    def __init__(self, handler: LoadedHandler, number: int) -> None:
        self._handler = handler
        self._number = number
        self._thread: _CallThread | None = None
        self._future: asyncio.Future[BaseException | None] | None = None

    @property
    def is_calling(self) -> bool:
        return self._future is not None and not self._future.done()

    async def call(self, batch: Batch) -> None:
        """Call the handler in the thread and wait for it. Raises the handler's exception, or HandlerNotAwaitedError."""
        loop = asyncio.get_running_loop()
        if self._thread is None:
            self._thread = _CallThread(self._handler, self._number)
        self._future = future = loop.create_future()
        self._thread.jobs.put((batch, future, loop))
        error = await future
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to this frame: only the garbage collector would free both

    def abandon(self, on_end: Callable[[], None]) -> None:
        """Leave the running call to its thread, and use a new thread for later calls.

        The task that awaits `call` continues without a result. `on_end` is called if the call ever ends.
        """
        future, thread = self._future, self._thread
        if future is None or thread is None or future.done():
            return
        loop = future.get_loop()
        thread.stop(lambda: call_in_loop(loop, on_end))
        self._thread = None
        future.set_result(None)

    def stop(self, ended: Callable[[], None] = lambda: None) -> None:
        """End the thread after its current call. `ended` is called in the thread at that moment."""
        if self._thread is not None:
            self._thread.stop(ended)
            self._thread = None


async def call_handler(handler: LoadedHandler, batch: Batch, ended: Callable[[], None]) -> None:
    """Call a handler once, outside the group's slots. Raises the handler's exception, or HandlerNotAwaitedError.

    `ended` is called in the event loop when the call has ended. A cancellation does not wait for a handler's thread.
    """
    if handler.is_async:
        try:
            check_result(await handler.handle(batch), handler.name)
        finally:
            ended()
        return
    loop, thread = asyncio.get_running_loop(), HandlerThread(handler, 0)
    try:
        await thread.call(batch)
    finally:
        thread.stop(partial(call_in_loop, loop, ended))


async def call_start_or_stop(
    function: Callable[[], Any] | None, clock: Clock, given_up: asyncio.Event | None = None
) -> bool:
    """Call a handler's `start` or `stop`. A synchronous function runs in a thread, because it may block.

    The call is cancelled when `given_up` is set. Returns whether the call completed.
    """
    if function is None:
        return True
    # A separate task: the function may cancel its own task, and must not cancel ours.
    context = contextvars.copy_context()
    call = asyncio.create_task(_guarded(function), name="handler start or stop", context=context)
    waiting = asyncio.create_task((given_up or asyncio.Event()).wait(), name="stop while the handler starts")
    try:
        await asyncio.wait((call, waiting), return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await _cancel(call, function, clock)
        raise
    finally:
        waiting.cancel()
    if not call.done():
        await _cancel(call, function, clock)
        if not call.done() or call.cancelled():
            return False
    for variable, value in context.items():  # handler calls need the context variables that the function has set
        variable.set(value)
    error = HandlerEndedError("it cancelled itself") if call.cancelled() else call.result()
    if isinstance(error, Exception):
        raise error
    if error is not None:  # an exception such as SystemExit would end more than this group
        raise HandlerEndedError(f"it raised {describe(error)}") from error
    return True


async def _cancel(call: asyncio.Task[Any], function: Callable[[], Any], clock: Clock) -> None:
    call.cancel()
    _, left = await clock.wait((call,), timeout=CANCEL_TIMEOUT_SECONDS)
    if left:  # not awaited: a call that ignores its cancellation would delay the end of the group or process forever
        log.error("handler.left_behind", handler=getattr(function, "__qualname__", ""), calls=1)


async def _guarded(function: Callable[[], Any]) -> BaseException | None:
    """Call a function and return its exception, because a SystemExit raised in a task would end the event loop."""
    try:
        await call_sync_or_async(function)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  the caller raises it
        return error
    return None


_Job = tuple[Batch, "asyncio.Future[BaseException | None]", asyncio.AbstractEventLoop]


class _CallThread:
    """One thread, and the queue of its calls."""

    def __init__(self, handler: LoadedHandler, number: int) -> None:
        self._handler = handler
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._at_end: Callable[[], None] = lambda: None
        self._is_stopped = False
        # the thread logs with the same bound variables as the group
        context = contextvars.copy_context()
        name = f"{handler.name}-{number}"
        threading.Thread(target=context.run, args=(self._run,), name=name, daemon=True).start()

    def stop(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._is_stopped = True
        self.jobs.put(None)

    def _run(self) -> None:
        is_call_abandoned.set(lambda: self._is_stopped)
        while (job := self.jobs.get()) is not None:
            batch, future, loop = job
            error: BaseException | None = None
            try:
                self._call(batch)
            except BaseException as raised:  # noqa: BLE001  every exception of a handler is its result
                error = raised
            call_in_loop(loop, partial(set_result_or_exception, future, error))
            del batch, job, future, error  # an idle thread must not keep objects alive
        self._at_end()

    def _call(self, batch: Batch) -> None:
        if (result := self._handler.handle(batch)) is not None:
            check_result(result, self._handler.name)
