"""A handler with an effect in PostgreSQL that is to happen once, by `message.once`; or without, for comparison."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel

from rmqd import AlreadyHandled, Batch, Depends, Message, handler
from rmqd.offset_stores import offset_connection


def keys_of(message: Message) -> str:
    """What a row has of a message."""
    return message.keys or ""


class OnceHandler:
    """Adds a row for each message. Its plugin name is `tests.nightly.campaigns.once_handler:OnceHandler`."""

    class Options(BaseModel):
        """`marks`: whether rows are added once, by the mark of the message."""

        url: str
        marks: bool
        retry_for: str
        """Taken as every handler of the campaign does; here a failed batch is sent back at once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pool: AsyncConnectionPool | None = None

    async def start(self) -> None:
        """Open the pool; the database may be away."""
        self._pool = AsyncConnectionPool(self._options.url, open=False, min_size=1, max_size=8, timeout=5)
        await self._pool.open()

    async def handle(self, batch: Batch) -> None:
        """Add a row for each message. Raises what the database says."""
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
    """Adds rows by the connection of the group's offset store, so that an offset and its rows are one transaction."""

    class Options(BaseModel):
        """`retry_for` is taken as every handler of the campaign does."""

        retry_for: str

    def __init__(self, options: Options) -> None:
        """Keep nothing."""

    @handler(decode=keys_of)
    async def handle(self, keys: list[str], connection: Annotated[Any, Depends(offset_connection)]) -> None:
        """Add a row for each message. Raises what the database says."""
        for key in keys:
            await connection.execute("INSERT INTO handled VALUES (%s)", (key,))
