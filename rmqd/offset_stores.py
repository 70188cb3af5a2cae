"""Offset stores of the user's own: what one can do, and how a handler gets its connection. docs/offset-stores.md."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from rmqd.errors import OffsetStoreError as OffsetStoreError  # for authors of stores


class StoredQueue(NamedTuple):
    """Whose offset it is: one queue of one group."""

    cluster: str
    group: str
    topic: str
    broker: str
    queue: int


class Progress(NamedTuple):
    """What a group has finished of a queue: all below `offset`, and what `above` names, such as `105-110,120-120`."""

    offset: int
    above: str = ""


class OffsetStore(Protocol):
    """Keeps the offsets of a group, in transactions that handlers write in.

    Each method raises OffsetStoreError where the store is away, or does not say whether it has committed. What else
    `write` and the end of a transaction raise counts as the handler's failure: nothing was committed.
    """

    async def open(self) -> None:
        """Connect, and make what is missing; called first."""

    async def close(self) -> None:
        """Let go of all connections."""

    async def take(self, queue: StoredQueue, owner: str) -> Progress | None:
        """Make `owner` the only one that may write. Returns what is stored, which no former owner changes any more."""

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A block in a transaction, with its connection: committed at the end, taken back by an exception."""

    async def write(self, connection: Any, queue: StoredQueue, owner: str, progress: Progress) -> bool:
        """Store this in the connection's transaction. Returns False, and stores nothing, for any other owner."""


connection_of_call: ContextVar[Any] = ContextVar("offset_connection")


def offset_connection() -> Any:
    """The connection of the group's offset store, in whose transaction the call's messages count as handled."""
    try:
        return connection_of_call.get()
    except LookupError:
        accepted = "in a call of an asynchronous handler whose group has offset_store: {plugin: NAME}"
        raise RuntimeError(f"no transaction of an offset store is open here; accepted: {accepted}") from None
