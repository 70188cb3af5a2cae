"""The offset store `postgresql`: a group's offsets in a table of the database that its handler writes to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rmqd.offset_stores import OffsetStoreError, StoredProgress, StoredQueue
from rmqd_handlers.option_kinds import CONNECT_SECONDS, MAX_CONNECTIONS, HandlerOptions, LibpqUrl, conninfo_of, require

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg_pool import AsyncConnectionPool

LOCK = "SELECT pg_advisory_xact_lock(hashtext('rmqd_offsets'))"  # concurrent attempts to create a table would fail
MAKE = """
CREATE TABLE IF NOT EXISTS rmqd_offsets (
    cluster text, consumer_group text, topic text, broker text, queue integer,
    owner text NOT NULL, next_offset bigint, above text NOT NULL DEFAULT '', changed_at timestamptz DEFAULT now(),
    PRIMARY KEY (cluster, consumer_group, topic, broker, queue)
)
"""
WAIT = "SET LOCAL lock_timeout = '5s'"  # how long TAKE waits for a previous owner that has not committed yet
TAKE = """
INSERT INTO rmqd_offsets (cluster, consumer_group, topic, broker, queue, owner) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (cluster, consumer_group, topic, broker, queue) DO UPDATE SET owner = EXCLUDED.owner, changed_at = now()
RETURNING next_offset, above
"""
# if a process is suspended before its commit, PostgreSQL ends its transaction after 10 s, which releases the row
WRITE = """
UPDATE rmqd_offsets SET next_offset = %s, above = %s, changed_at = now()
FROM (SELECT set_config('idle_in_transaction_session_timeout', '10s', true)) AS limits
WHERE (cluster, consumer_group, topic, broker, queue, owner) = (%s, %s, %s, %s, %s, %s)
"""


class PostgresqlOffsets:
    """Keeps offsets in the table `rmqd_offsets`. Handlers use the connections of its transactions."""

    class Options(HandlerOptions):
        url: LibpqUrl = Field(description="the database: postgresql://user:password@host/database, or libpq's keywords")
        max_connections: int = MAX_CONNECTIONS

    def __init__(self, options: Options) -> None:
        require("psycopg_pool", "postgresql")
        self._options = options
        self._slots = asyncio.Semaphore(options.max_connections)
        self._pool: AsyncConnectionPool[AsyncConnection[Any]]

    async def open(self) -> None:
        from psycopg_pool import AsyncConnectionPool

        self._pool = AsyncConnectionPool(
            conninfo_of(self._options.url.get_secret_value()),
            min_size=1,
            max_size=self._options.max_connections,
            open=False,
            name="rmqd offsets",
            configure=_read_committed,
            timeout=CONNECT_SECONDS,
            reconnect_timeout=CONNECT_SECONDS,  # the next call connects at once, instead of after a long pause
        )
        await self._pool.open()
        async with self.transaction() as connection:
            cursor = await connection.execute("SELECT to_regclass('rmqd_offsets') IS NOT NULL")
            if not (await cursor.fetchone())[0]:
                await connection.execute(LOCK)
                await connection.execute(MAKE)

    async def close(self) -> None:
        await self._pool.close()

    async def take(self, queue: StoredQueue, owner: str) -> StoredProgress | None:
        async with self.transaction() as connection:
            await _executed(connection, WAIT)
            cursor = await _executed(connection, TAKE, *queue, owner)
            offset, above = await cursor.fetchone()
        return None if offset is None else StoredProgress(offset, above)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        from psycopg import Error
        from psycopg_pool import PoolTimeout

        connection: AsyncConnection[Any] | None = None
        try:
            async with self._slots, self._pool.connection() as connection:
                yield connection
        except (Error, PoolTimeout) as error:
            if connection is None or connection.closed:
                raise OffsetStoreError(f"PostgreSQL: {str(error) or type(error).__name__}") from error
            raise  # the connection works, so the handler caused the error

    async def write(self, connection: Any, queue: StoredQueue, owner: str, progress: StoredProgress) -> bool:
        cursor = await _executed(connection, WRITE, *progress, *queue, owner)
        return bool(cursor.rowcount)


async def _read_committed(connection: AsyncConnection[Any]) -> None:
    """Let a statement that waited for another transaction see the changes of that transaction."""
    from psycopg import IsolationLevel

    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)


async def _executed(connection: AsyncConnection[Any], statement: str, *values: object) -> Any:
    from psycopg import Error
    from psycopg.errors import InFailedSqlTransaction, ReadOnlySqlTransaction

    try:
        return await connection.execute(statement.encode(), values or None)
    except InFailedSqlTransaction:  # the handler has caught an error and not ended the transaction
        raise
    except Error as error:
        if isinstance(error, ReadOnlySqlTransaction):
            await connection.close()  # a former primary: the pool opens a connection to the new one
        raise OffsetStoreError(f"PostgreSQL: {str(error) or type(error).__name__}") from error
