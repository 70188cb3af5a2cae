"""Checks of an asynchronous handler: does it block the event loop, and do its tasks outlive the call that created them?

`TimedCoroutine` logs a warning if a handler blocks the event loop, in its call or in a task that it created. It
measures each step, which is the time until the coroutine waits. A handler that never waits has many calls in one step.

`HandlerTasks` logs a warning if a handler returns while a task that it created still runs, because the messages are
acknowledged before the task ends. The event loop's task factory finds such tasks, by one lookup for each new task. Only
a handler's first tasks are watched, because a handler that leaves tasks running does so from the start.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from types import CoroutineType
from typing import Any, Final, TypeVar

import structlog

from rmqd.handler_api.batch import Batch, LoadedHandler
from rmqd.runtime.clock import Clock

log = structlog.get_logger(__name__)

BLOCKED_SECONDS: Final = 1.0
MAX_WATCHED_TASKS: Final = 1000  # further tasks of a handler are not watched

T = TypeVar("T")
RunStep = Callable[[Callable[[T], Any], T], Any]


def _run_step(handler_name: str, monotonic: Callable[[], float], step: Callable[[T], Any], value: T) -> Any:
    """Call `step`. The event loop calls this after each wait of a handler: do not add a Python function."""
    started = monotonic()
    try:
        return step(value)
    finally:
        if (seconds := monotonic() - started) > BLOCKED_SECONDS:
            log.warning("handler.blocked_loop", handler=handler_name, seconds=round(seconds, 3))
        del value  # the traceback of an exception refers to this frame, and would keep the batch alive


@Coroutine.register
class TimedCoroutine:
    """A coroutine whose steps are called by `run_step`. Other attributes, such as `cr_frame`, are the coroutine's."""

    __slots__ = ("__weakref__", "_coroutine", "send", "throw")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], run_step: RunStep[Any]) -> None:
        self._coroutine = coroutine
        self.send, self.throw = partial(run_step, coroutine.send), partial(run_step, coroutine.throw)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)

    def __await__(self) -> Any:
        """Run the coroutine unmeasured, if the task factory of another library has wrapped it in a coroutine."""
        return self._coroutine.__await__()


class HandlerTasks:
    """Watches the tasks that the handler's package creates in calls. Tasks of other packages may keep running."""

    def __init__(self, handler: LoadedHandler, clock: Clock | None = None) -> None:
        """Without `clock`, the handler may block the event loop, because it runs in a separate process."""
        function: Any = inspect.unwrap(handler.handle)
        while isinstance(function, partial):  # unwraps to the author's function
            function = inspect.unwrap(function.func)
        self._name, self._package = handler.name, _package(getattr(function, "__module__", ""))
        self._run_step = None if clock is None else partial(_run_step, handler.name, clock.monotonic)
        self._left = MAX_WATCHED_TASKS
        # True for a handler in worker processes: its tasks in this process belong to rmqd, and may outlive a call
        self._is_reported = self._package == "rmqd"

    def watch(self, caller: asyncio.Task[Any], batch: Callable[[], Batch | None]) -> None:
        """Watch the tasks that `caller` creates. `batch` returns the handler's current batch, None between calls."""
        loop = caller.get_loop()
        if loop.get_task_factory() in (None, _create_task):  # any other factory was set by the handler's author
            loop.set_task_factory(_create_task)
            _callers[caller] = self, batch
            caller.add_done_callback(_callers.pop)

    def timed(self, coroutine: Any) -> Any:
        """Return the coroutine that a task must run instead of this one, so that its steps are measured."""
        if self._run_step is None or type(coroutine) is not CoroutineType:
            return coroutine
        return TimedCoroutine(coroutine, self._run_step)

    def created(self, task: asyncio.Task[Any], batch: Callable[[], Batch | None], had: Batch) -> None:
        """Watch a new task. Called by the task factory, which its creator called."""
        if self._left <= 0 or self._is_reported:
            return
        frame: Any = sys._getframe(2)
        while frame is not None and (creator := _package(frame.f_globals.get("__name__"))) == "asyncio":
            frame = frame.f_back
        if frame is not None and creator == self._package:
            self._left -= 1
            task.add_done_callback(partial(self._ended, batch, had))
            self.watch(task, lambda: had if batch() is had else None)

    def _ended(self, batch: Callable[[], Batch | None], had: Batch, task: asyncio.Task[Any]) -> None:
        if batch() is not had and not self._is_reported and not task.cancelled():
            self._is_reported = True
            name, place = getattr(task.get_coro(), "__qualname__", ""), str(had.message_queue)
            log.warning("handler.task_left", handler=self._name, task=name, queue=place, msg_id=had[0].msg_id)


_callers: Final[dict[asyncio.Task[Any] | None, tuple[HandlerTasks, Callable[[], Batch | None]]]] = {}


def _create_task(loop: asyncio.AbstractEventLoop, coro: Any, **named: Any) -> asyncio.Task[Any]:
    watched = _callers.get(asyncio.current_task(loop))
    if watched is None or (had := watched[1]()) is None:
        return asyncio.Task(coro, loop=loop, **named)
    tasks, batch = watched
    task = asyncio.Task(tasks.timed(coro), loop=loop, **named)
    tasks.created(task, batch, had)
    return task


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]
