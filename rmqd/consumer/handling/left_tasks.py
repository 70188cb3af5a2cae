"""Warns of a task that a handler created and did not wait for: its messages were acknowledged before it ended.

The event loop calls a task factory for each new task, and for nothing else. So a handler without tasks costs nothing,
and of one with tasks only the first `MOST_WATCHED` are watched: who leaves tasks does so from the start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog

from rmqd.handler_api import Batch
from rmqd.loaded_handler import LoadedHandler

log = structlog.get_logger(__name__)

MOST_WATCHED: Final = 1000


class LeftTasks:
    """The tasks that one handler creates in its calls. Libraries that it uses may keep tasks of their own."""

    def __init__(self, handler: LoadedHandler) -> None:
        self._name = handler.name
        self._package = _package_of(handler.handle)
        self._left = 0 if self._package == "rmqd" else MOST_WATCHED
        self._is_told = False

    def watch(self, caller: asyncio.Task[None], batch: Callable[[], Batch | None]) -> None:
        """Watch what the handler creates in the task `caller`, which calls it. `batch` tells what the handler has."""
        loop = caller.get_loop()
        if self._left and loop.get_task_factory() in (None, _create_task):
            loop.set_task_factory(_create_task)
            _callers[caller] = partial(self._created, batch)
            caller.add_done_callback(_forget)

    def _created(self, batch: Callable[[], Batch | None], task: asyncio.Task[Any]) -> None:
        has, frame = batch(), getattr(task.get_coro(), "cr_frame", None)
        if has is None or frame is None or _root(frame.f_globals.get("__name__")) != self._package:
            return
        self._left -= 1
        task.add_done_callback(partial(self._ended, batch, has))
        if self._left <= 0:
            _forget(asyncio.current_task())

    def _ended(self, batch: Callable[[], Batch | None], had: Batch, task: asyncio.Task[Any]) -> None:
        if not self._is_told and batch() is not had and not task.cancelled():
            self._is_told = True
            name = getattr(task.get_coro(), "__qualname__", "")
            log.warning(
                "handler.task_left", handler=self._name, task=name, queue=str(had.message_queue), msg_id=had[0].msg_id
            )


_callers: Final[dict[asyncio.Task[Any] | None, Callable[[asyncio.Task[Any]], None]]] = {}


def _create_task(loop: asyncio.AbstractEventLoop, coro: Any, **named: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(coro, loop=loop, **named)
    if (created := _callers.get(asyncio.current_task(loop))) is not None:
        created(task)
    return task


def _forget(caller: asyncio.Task[Any] | None) -> None:
    _callers.pop(caller, None)


def _package_of(function: Any) -> str:
    """The top package of the author's function, behind partials and decorators."""
    while (inner := getattr(function, "func", None) or getattr(function, "__wrapped__", None)) is not None:
        function = inner
    return _root(getattr(function, "__module__", None))


def _root(module: str | None) -> str:
    return (module or "").partition(".")[0]
