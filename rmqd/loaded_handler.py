"""A handler with its options, as the engines call it, and the counts of its worker processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rmqd.handler_api import Batch

LOSS_CAUSES: Final = ("died", "hung", "memory")
"""Why a handler's worker process is replaced: it ended, its call did not end, or it exceeded its memory limit."""


@dataclass(slots=True)
class ProcessCounts:
    """The worker processes that run a handler's calls."""

    running: int
    lost: dict[str, int]  # keys: LOSS_CAUSES


@dataclass(slots=True, eq=False)
class LoadedHandler:
    """A handler plugin that was created with its options, and can be started."""

    name: str
    """The name in the configuration, for logs and metrics."""
    handle: Callable[[Batch], Any]
    is_async: bool
    """Whether `handle` returns an awaitable; a synchronous one is called in a thread."""
    start: Callable[[], Any] | None
    """Called once per process before the first message; may return an awaitable."""
    stop: Callable[[], Any] | None
    """Called once per process after the last message; may return an awaitable."""
    ready: Callable[[], Awaitable[None]] | None = None
    """Awaited by a worker slot before it takes a batch, if calls need something that may be unavailable for a while."""
    processes: ProcessCounts | None = None  # None if the handler runs in this process
    end_calls: Callable[[], Any] | None = None
    """Called while something waits for calls that are kept open. With processes, it is only known after they have
    started.
    """
