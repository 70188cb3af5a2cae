"""What `Message.once` calls. The marks themselves are written above this room, which does no I/O."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from rmqd.wire.identity import Identity


class Once(Protocol):
    """A block that has its effect once, for synchronous handlers and for asynchronous ones."""

    def __enter__(self) -> None: ...
    def __exit__(self, *raised: Any) -> None: ...
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *raised: Any) -> None: ...


class InGroup(Protocol):
    """The group that a handler runs in. A call makes the block for a message and a connection."""

    @property
    def identity(self) -> Identity: ...
    def __call__(self, message: Any, connection: object, /) -> Once: ...


once_in_group: ContextVar[InGroup] = ContextVar("once_in_group")
"""Set where the handler of a group runs."""


def running_group() -> Identity:
    """The group whose handler runs here; with empty names if none does, as in a test of a handler."""
    running = once_in_group.get(None)
    return Identity("", "", "") if running is None else running.identity
