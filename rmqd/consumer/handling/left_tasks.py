"""Warns of a task that a handler created but did not await: its messages were acknowledged before the task ended.

The event loop calls a task factory for each new task, which costs one lookup. A message costs nothing if its handler
creates no task. Only a handler's first tasks are watched, because a handler that leaves tasks does so from the start.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from rmqd.handler_api import Batch
from rmqd.loaded_handler import LoadedHandler

log = structlog.get_logger(__name__)

MOST_WATCHED: Final = 1000  # tasks for each handler


class LeftTasks:
    """The tasks that one handler creates in its calls. Libraries that it uses may keep running tasks."""

    def __init__(self, handler: LoadedHandler) -> None:
        function: Any = inspect.unwrap(handler.handle)
        while isinstance(function, partial):  # unwraps to the author's function
            function = inspect.unwrap(function.func)
        self._name, self._package = handler.name, _package(getattr(function, "__module__", ""))
        self._left = MOST_WATCHED
        self._is_reported = self._package == "rmqd"  # for worker processes: their tasks may outlive a call

    def watch(self, caller: asyncio.Task[None], batch: Callable[[], Batch | None]) -> None:
        """Watch the tasks that the task `caller` creates, while `batch` returns the handler's current batch."""
        loop = caller.get_loop()
        if loop.get_task_factory() in (None, _create_task):  # otherwise the author's own factory
            loop.set_task_factory(_create_task)
            _callers[caller] = partial(self._created, batch)
            caller.add_done_callback(_callers.pop)

    def _created(self, batch: Callable[[], Batch | None], task: asyncio.Task[Any]) -> None:
        if self._left <= 0 or self._is_reported or (had := batch()) is None:
            return
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and _package(frame.f_globals.get("__name__")) == self._package:
            self._left -= 1
            task.add_done_callback(partial(self._ended, batch, had))

    def _ended(self, batch: Callable[[], Batch | None], had: Batch, task: asyncio.Task[Any]) -> None:
        if batch() is not had and not self._is_reported and not task.cancelled():
            self._is_reported = True
            name, place = getattr(task.get_coro(), "__qualname__", ""), str(had.message_queue)
            log.warning("handler.task_left", handler=self._name, task=name, queue=place, msg_id=had[0].msg_id)


_callers: Final[dict[asyncio.Task[Any] | None, Callable[[asyncio.Task[Any]], None]]] = {}


def _create_task(loop: asyncio.AbstractEventLoop, coro: Any, **named: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **named)
    if (created := _callers.get(asyncio.current_task(loop))) is not None:
        created(task)
    return task


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]
