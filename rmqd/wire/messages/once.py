"""The interface behind `Message.once`. A room above writes the records, because this room does no I/O."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from rmqd.wire.identity import Identity


class Once(Protocol):
    """A block that takes effect once, for synchronous and asynchronous handlers."""

    def __enter__(self) -> None: ...
    def __exit__(self, *raised: Any) -> None: ...
    async def __aenter__(self) -> None: ...
    async def __aexit__(self, *raised: Any) -> None: ...


class InGroup(Protocol):
    """The group that a handler runs in. A call creates the block for a message and a connection."""

    @property
    def identity(self) -> Identity: ...
    def __call__(self, message: Any, connection: object, /) -> Once: ...


once_in_group: ContextVar[InGroup] = ContextVar("once_in_group")
"""Set while a group's handler runs."""


def running_group() -> Identity:
    """Return the group whose handler runs here; with empty names if none does, as in a test of a handler."""
    running = once_in_group.get(None)
    return Identity("", "", "") if running is None else running.identity
