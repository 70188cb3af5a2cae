"""A handler that was found and made, as the engines call it, and what is told of the processes that it runs in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rmqd.handler_api import Batch

LOSS_CAUSES: Final = ("died", "hung", "memory")
"""Why a worker process of a handler is replaced: it ended, its call did not, it used up its memory limit."""


@dataclass(slots=True)
class ProcessCounts:
    """The worker processes that calls of a handler run in."""

    running: int
    lost: dict[str, int]  # by LOSS_CAUSES


@dataclass(slots=True, eq=False)
class LoadedHandler:
    """A handler plugin that was made with its options, and can be started."""

    name: str
    """As the configuration names it, for logs and metrics."""
    handle: Callable[[Batch], Any]
    is_async: bool
    """Whether `handle` returns an awaitable; a synchronous one is called in a thread."""
    start: Callable[[], Any] | None
    """Called once per process before the first message; may return an awaitable."""
    stop: Callable[[], Any] | None
    """Called once per process after the last message; may return an awaitable."""
    ready: Callable[[], Awaitable[None]] | None = None
    """Awaited by a slot before it takes a batch, where calls need something that may be missing for a while."""
    processes: ProcessCounts | None = None  # None where it runs in this process
    end_calls: Callable[[], Any] | None = None
    """Called while something waits for calls that are kept open. With processes it is known once these have started."""
