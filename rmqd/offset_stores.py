"""Custom offset stores: the methods of a store, and its connection for a handler. See docs/offset-stores.md."""

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
    """The finished messages of a queue: all below `offset`, and the ranges in `above`, such as `105-110,120-120`."""

    offset: int
    above: str = ""


class OffsetStore(Protocol):
    """Keeps the offsets of a group in the transactions that its handler writes in.

    Each method raises OffsetStoreError if the store is unavailable, or does not say whether it has committed. Any
    other exception has the same effect, except from `write` or the end of a handler's transaction. There it counts as
    the handler's failure: nothing was committed.
    """

    async def open(self) -> None:
        """Connect, and create anything that is missing. Called first."""

    async def close(self) -> None:
        """Close all connections."""

    async def take(self, queue: StoredQueue, owner: str) -> StoredProgress | None:
        """Make `owner` the only writer. Returns the stored progress, which previous owners can no longer change."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Return a block in a transaction, with its connection. Its end commits; an exception rolls back."""

    async def write(self, connection: Any, queue: StoredQueue, owner: str, progress: StoredProgress) -> bool:
        """Store `progress` in the connection's transaction. Returns False, and stores nothing, for any other owner."""


connection_of_call: ContextVar[Any] = ContextVar("offset_connection")


def offset_connection() -> Any:
    """Return the connection of the group's offset store. Its transaction records the call's messages as handled."""
    try:
        return connection_of_call.get()
    except LookupError:
        accepted = "a call of an asynchronous handler whose group has offset_store: {plugin: NAME}"
        raise RuntimeError(f"no transaction of an offset store is open here; expected {accepted}") from None
