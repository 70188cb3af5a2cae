"""A handler that adds PostgreSQL rows exactly once with `message.once`, or without it for comparison."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

from rmqd import AlreadyHandled, Batch, Depends, Message, handler
from rmqd.offset_stores import offset_connection


def keys_of(message: Message) -> str:
    """Return the value of a message's row."""
    return message.keys or ""


class OnceHandler:
    """Adds a row for each message. Its plugin name is `tests.nightly.campaigns.once_handler:OnceHandler`."""

    class Options(BaseModel):
        """`marks`: whether `message.once` is used."""

        url: str
        marks: bool
        retry_for: str
        """Accepted because every handler of the campaign has it. Here a failed batch is sent back at once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pool: AsyncConnectionPool | None = None

    async def start(self) -> None:
        """Open the pool. The database may be unavailable."""
        self._pool = AsyncConnectionPool(self._options.url, open=False, min_size=1, max_size=8, timeout=5)
        await self._pool.open()

    async def handle(self, batch: Batch) -> None:
        """Add a row for each message. Raises the database's errors."""
        assert self._pool is not None
        for message in batch:
            async with contextlib.AsyncExitStack() as block:
                block.enter_context(contextlib.suppress(AlreadyHandled))
                connection = await block.enter_async_context(self._pool.connection())
                if self._options.marks:
                    await block.enter_async_context(message.once(connection))
                await connection.execute("INSERT INTO handled VALUES (%s)", (message.keys,))
            batch.ack(message)

    async def stop(self) -> None:
        """Close the pool."""
        assert self._pool is not None
        await self._pool.close()


class OffsetHandler:
    """Adds rows over the connection of the group's offset store: offset and rows are one transaction."""

    class Options(BaseModel):
        """`retry_for` is accepted because every handler of the campaign has it."""

        retry_for: str

    def __init__(self, options: Options) -> None:
        """Ignore the options."""

    @handler(decode=keys_of)
    async def handle(self, keys: list[str], connection: Annotated[Any, Depends(offset_connection)]) -> None:
        """Add a row for each message. Raises the database's errors."""
        for key in keys:
            await connection.execute("INSERT INTO handled VALUES (%s)", (key,))
