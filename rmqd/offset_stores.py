"""Custom offset stores: the interface OffsetStore, and `offset_connection` for handlers. See docs/offset-stores.md."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from rmqd.errors import OffsetStoreError as OffsetStoreError  # exported for authors of offset stores


class StoredQueue(NamedTuple):
    """The key of a stored offset: one queue of one group."""

    cluster: str
    group: str
    topic: str
    broker: str
    queue: int


class StoredProgress(NamedTuple):
    """The finished messages of a queue: all below `offset`, and the offset ranges in `above` (`105-110,120-120`)."""

    offset: int
    above: str = ""


class OffsetStore(Protocol):
    """Stores the offsets of a group in the same transactions as the handler's own writes.

    Each method raises OffsetStoreError if the store is unavailable, or if it is unknown whether a commit took effect.
    Any other exception has the same effect, unless `write` or the end of a handler's transaction raises it. In that
    case the handler's call has failed, and nothing was committed.
    """

    async def open(self) -> None:
        """Connect, and create anything that is missing. Called first."""

    async def close(self) -> None:
        """Close all connections."""

    async def take(self, queue: StoredQueue, owner: str) -> StoredProgress | None:
        """Make `owner` the queue's only writer, so that earlier owners cannot write. Returns the stored progress."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Return a context manager that yields a connection in a transaction. It commits; an exception rolls back."""

    async def write(self, connection: Any, queue: StoredQueue, owner: str, progress: StoredProgress) -> bool:
        """Store `progress` in the connection's transaction, or return False if `owner` is not the queue's writer."""


connection_of_call: ContextVar[Any] = ContextVar("offset_connection")


def offset_connection() -> Any:
    """Return the offset store's connection in a handler call. Its transaction also records the messages as handled."""
    try:
        return connection_of_call.get()
    except LookupError:
        accepted = "a call of an asynchronous handler whose group has offset_store: {plugin: NAME}"
        raise RuntimeError(f"no transaction of an offset store is open here; expected {accepted}") from None
