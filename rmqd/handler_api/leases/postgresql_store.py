"""Claims in a PostgreSQL table. Each step is one statement, thus one transaction. Leases use the server's clock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final

from psycopg import AsyncConnection, Error, OperationalError
from psycopg.errors import ReadOnlySqlTransaction, UndefinedTable
from psycopg_pool import AsyncConnectionPool

from rmqd.handler_api.leases.lease_store import ClaimState, ClaimStoreError, ClaimTerms, HeldClaim, Key
from rmqd.runtime.plain_text import duration

TABLE: Final = "rmqd_claims"
CONNECT_SECONDS: Final = 5
CALL_SECONDS = 5.0  # limit for one statement, because the server may have failed silently
MAX_CONNECTIONS: Final = 4  # enough, because a statement takes milliseconds
MAX_PURGED: Final = 10_000  # rows deleted in one statement, so that other statements do not wait for long

# a lock, because concurrent attempts to create a table fail
_LOCK: Final = f"SELECT pg_advisory_xact_lock(hashtext('{TABLE}'))"
_CREATE: Final = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
    consumer_group text NOT NULL, topic text NOT NULL, id text NOT NULL,
    token text NOT NULL, is_confirmed boolean NOT NULL, ends_at timestamptz NOT NULL,
    PRIMARY KEY (consumer_group, topic, id)
)
"""
_INDEX: Final = f"CREATE INDEX IF NOT EXISTS {TABLE}_by_end ON {TABLE} (ends_at)"
# All statements lock rows in the same order, to avoid deadlocks. If a message is neither in `claimed` nor in `known`,
# another owner claimed it after the statement's snapshot, so the message counts as held.
_CLAIM: Final = f"""
WITH wanted AS (
    SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[], %(former)s::text[]) WITH ORDINALITY
    AS one (topic, id, former, place)
),
known_before AS (
    SELECT place, old.is_confirmed FROM wanted JOIN {TABLE} AS old
    ON old.consumer_group = %(group)s AND old.topic = wanted.former AND old.id = wanted.id AND old.ends_at > now()
),
claimed AS (
    INSERT INTO {TABLE} AS old
    SELECT %(group)s, topic, id, %(token)s, false, now() + %(seconds)s * interval '1 second'
    FROM wanted WHERE place NOT IN (SELECT place FROM known_before) ORDER BY topic, id
    ON CONFLICT (consumer_group, topic, id) DO UPDATE
    SET token = EXCLUDED.token, is_confirmed = false, ends_at = EXCLUDED.ends_at
    WHERE old.ends_at <= now() OR (NOT old.is_confirmed AND starts_with(old.token, %(owner)s))
    RETURNING topic, id
)
SELECT claimed.id IS NOT NULL, coalesce(known_before.is_confirmed, known.is_confirmed, false)
FROM wanted
LEFT JOIN known_before USING (place)
LEFT JOIN claimed USING (topic, id)
LEFT JOIN {TABLE} AS known
    ON known.consumer_group = %(group)s AND known.topic = wanted.topic AND known.id = wanted.id
ORDER BY place
"""
_CONFIRM: Final = f"""
WITH wanted AS (SELECT * FROM unnest(%(topics)s::text[], %(ids)s::text[]) AS one (topic, id)),
confirmed AS (
    INSERT INTO {TABLE}
    SELECT %(group)s, topic, id, %(token)s, true, now() + %(seconds)s * interval '1 second'
    FROM wanted ORDER BY topic, id
    ON CONFLICT (consumer_group, topic, id) DO UPDATE
    SET token = EXCLUDED.token, is_confirmed = true, ends_at = EXCLUDED.ends_at
)
SELECT count(*) FROM wanted JOIN {TABLE} AS known
    ON known.consumer_group = %(group)s AND known.topic = wanted.topic AND known.id = wanted.id
WHERE known.token <> %(token)s
"""  # rows with the same token are not counted: a confirmation is repeated after a lost response
_HELD: Final = f"""
SELECT consumer_group, topic, id FROM {TABLE}
JOIN unnest(%(topics)s::text[], %(ids)s::text[], %(tokens)s::text[]) AS one (topic, id, token)
    USING (topic, id, token)
WHERE consumer_group = %(group)s AND NOT is_confirmed ORDER BY topic, id FOR UPDATE OF {TABLE}
"""
_RENEW: Final = f"""
WITH held AS ({_HELD})
UPDATE {TABLE} AS old SET ends_at = now() + %(seconds)s * interval '1 second' FROM held
WHERE (old.consumer_group, old.topic, old.id) = (held.consumer_group, held.topic, held.id)
"""
_RELEASE: Final = f"""
WITH held AS ({_HELD})
DELETE FROM {TABLE} AS old USING held
WHERE (old.consumer_group, old.topic, old.id) = (held.consumer_group, held.topic, held.id)
"""
_PURGE: Final = f"""
DELETE FROM {TABLE} WHERE ctid = ANY (
    ARRAY(SELECT ctid FROM {TABLE} WHERE ends_at <= now() LIMIT {MAX_PURGED} FOR UPDATE SKIP LOCKED)
)
"""


class PostgresqlClaims:
    """Claims in the table `rmqd_claims` of a URL's database. The table is created if it is missing."""

    def __init__(self, url: str, terms: ClaimTerms) -> None:
        self._terms = terms
        self._is_open = False
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] = AsyncConnectionPool(
            url,
            kwargs={
                "autocommit": True,
                "fallback_application_name": "rmqd",
                "connect_timeout": CONNECT_SECONDS,
                # detect a host that failed silently
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": 25_000,
            },
            min_size=1,
            max_size=MAX_CONNECTIONS,
            open=False,
            name="rmqd claims",
            timeout=CONNECT_SECONDS,
            reconnect_timeout=CONNECT_SECONDS,  # the next call tries again, instead of waiting for a long backoff
        )

    async def claim(self, keys: Sequence[Key], token: str, former: Sequence[str] = ()) -> list[ClaimState]:
        seconds, owner = self._terms.lease_seconds, self._terms.owner
        topics = list(former) or [""] * len(keys)
        rows = await self._run(_CLAIM, keys, token=token, seconds=seconds, owner=owner, former=topics)
        return [
            ClaimState.OURS if is_claimed else ClaimState.CONFIRMED if is_confirmed else ClaimState.HELD
            for is_claimed, is_confirmed in rows
        ]

    async def confirm(self, keys: Sequence[Key], token: str) -> int:
        [(lost,)] = await self._run(_CONFIRM, keys, token=token, seconds=self._terms.keep_seconds)
        return int(lost)

    async def renew(self, held: Sequence[HeldClaim]) -> None:
        tokens = [token for _, token in held]
        await self._run(_RENEW, [key for key, _ in held], tokens=tokens, seconds=self._terms.lease_seconds)

    async def release(self, held: Sequence[HeldClaim]) -> None:
        await self._run(_RELEASE, [key for key, _ in held], tokens=[token for _, token in held])

    async def purge(self) -> None:
        await self._run(_PURGE, ())

    async def close(self) -> None:
        await self._pool.close()

    async def _run(self, statement: str, keys: Sequence[Key], **values: object) -> list[tuple[Any, ...]]:
        values |= {
            "group": self._terms.group,
            "topics": [topic for topic, _ in keys],
            "ids": [name for _, name in keys],
        }
        try:
            if not self._is_open:
                await self._pool.open()
                self._is_open = True
            async with self._pool.connection() as connection:
                with self._limit(connection):
                    return await self._step(connection, statement, values)
        except UnicodeEncodeError as error:
            raise ClaimStoreError(f"PostgreSQL: {error}; use a database with the encoding UTF8") from error
        except (Error, OSError) as error:
            raise ClaimStoreError(f"PostgreSQL: {str(error) or type(error).__name__}") from error

    async def _step(
        self, connection: AsyncConnection[Any], statement: str, values: dict[str, object]
    ) -> list[tuple[Any, ...]]:
        try:
            return await _rows(connection, statement, values)
        except UndefinedTable:
            await _make_table(connection)
            return await _rows(connection, statement, values)
        except ReadOnlySqlTransaction:
            await connection.close()  # the server is a former primary; the pool then connects to the new primary
            raise
        except OperationalError as error:
            if not connection.closed:
                raise
            # close the other connections to this server too, because each would also wait for the time limit
            await self._pool.drain()
            raise OperationalError(
                f"the connection ended, or the server did not respond for {duration(CALL_SECONDS)}: {error}"
            ) from error

    @contextlib.contextmanager
    def _limit(self, connection: AsyncConnection[Any]) -> Iterator[None]:
        """Close the connection if the block takes too long.

        Cancelling the task would not help: the driver then asks the server to cancel the statement, and waits for its
        response.
        """
        timer = asyncio.get_running_loop().call_later(CALL_SECONDS, _cut, connection)
        try:
            yield
        finally:
            timer.cancel()


def _cut(connection: AsyncConnection[Any]) -> None:
    """Shut the socket down, so that the task that waits for a response fails at once."""
    if not connection.closed:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


async def _rows(connection: AsyncConnection[Any], statement: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(statement.encode(), values)
    return await cursor.fetchall() if cursor.description else []


async def _make_table(connection: AsyncConnection[Any]) -> None:
    async with connection.transaction():
        for statement in (_LOCK, _CREATE, _INDEX):
            await connection.execute(statement.encode())
