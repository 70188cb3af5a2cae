"""What `Message.once` calls. The marks themselves are written above this room, which does no I/O."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol


class Once(Protocol):
    """A block that has its effect once, for synchronous handlers and for asynchronous ones."""

    def __enter__(self) -> None: ...
    def __exit__(self, *raised: Any) -> None: ...
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *raised: Any) -> None: ...


once_in_group: ContextVar[Callable[[Any, object], Once]] = ContextVar("once_in_group")
"""Makes the block for a message and a connection; set where the handler of a group runs."""
