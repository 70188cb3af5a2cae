"""Claims in a table of PostgreSQL. Each step is one statement, and so a transaction; times are those of the server."""

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

from rmqd.claims.store import ClaimStoreError, Held, Key, Standing, Terms

TABLE: Final = "rmqd_claims"
CONNECT_SECONDS: Final = 5
CALL_SECONDS = 5.0  # for a server to answer: it may be gone without a word
MOST_CONNECTIONS: Final = 4  # steps are short: what waits for one of them waits for milliseconds
MOST_PURGED: Final = 10_000  # rows at a time, so that nobody waits for long

_LOCK: Final = f"SELECT pg_advisory_xact_lock(hashtext('{TABLE}'))"  # two that make a table at once would fail
_CREATE: Final = f"""
CREATE TABLE IF NOT EXISTS {TABLE} (
    consumer_group text NOT NULL, topic text NOT NULL, id text NOT NULL,
    token text NOT NULL, is_confirmed boolean NOT NULL, ends_at timestamptz NOT NULL,
    PRIMARY KEY (consumer_group, topic, id)
)
"""
_INDEX: Final = f"CREATE INDEX IF NOT EXISTS {TABLE}_by_end ON {TABLE} (ends_at)"
# Rows are locked in one order by all, so that no two of them wait for each other. What `claimed` does not have and the
# statement's snapshot does not show was claimed by another a moment ago.
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
"""  # its own confirmation may be there: its answer got lost
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
    ARRAY(SELECT ctid FROM {TABLE} WHERE ends_at <= now() LIMIT {MOST_PURGED} FOR UPDATE SKIP LOCKED)
)
"""


class PostgresqlClaims:
    """Claims in the table `rmqd_claims` of the database that a URL names. It is made where it is missing."""

    def __init__(self, url: str, terms: Terms) -> None:
        self._terms = terms
        self._is_open = False
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] = AsyncConnectionPool(
            url,
            kwargs={
                "autocommit": True,
                "fallback_application_name": "rmqd",
                "connect_timeout": CONNECT_SECONDS,
                # a host that is gone without a word
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": 25_000,
            },
            min_size=1,
            max_size=MOST_CONNECTIONS,
            open=False,
            name="rmqd claims",
            timeout=CONNECT_SECONDS,
            reconnect_timeout=CONNECT_SECONDS,  # then the next call tries anew, instead of waiting for a long pause
        )

    async def claim(self, keys: Sequence[Key], token: str, former: Sequence[str] = ()) -> list[Standing]:
        """Claim what may be claimed."""
        seconds, owner = self._terms.lease_seconds, self._terms.owner
        topics = list(former) or [""] * len(keys)
        rows = await self._run(_CLAIM, keys, token=token, seconds=seconds, owner=owner, former=topics)
        return [
            Standing.OURS if is_claimed else Standing.CONFIRMED if is_confirmed else Standing.HELD
            for is_claimed, is_confirmed in rows
        ]

    async def confirm(self, keys: Sequence[Key], token: str) -> int:
        """Note that these are done with."""
        [(lost,)] = await self._run(_CONFIRM, keys, token=token, seconds=self._terms.keep_seconds)
        return int(lost)

    async def renew(self, held: Sequence[Held]) -> None:
        """Begin the leases of these claims anew."""
        tokens = [token for _, token in held]
        await self._run(_RENEW, [key for key, _ in held], tokens=tokens, seconds=self._terms.lease_seconds)

    async def release(self, held: Sequence[Held]) -> None:
        """Give these claims up."""
        await self._run(_RELEASE, [key for key, _ in held], tokens=[token for _, token in held])

    async def purge(self) -> None:
        """Delete what is over."""
        await self._run(_PURGE, ())

    async def close(self) -> None:
        """End the connections."""
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
            await connection.close()  # a former primary: the pool replaces it, by one to the new primary
            raise
        except OperationalError as error:
            if not connection.closed:
                raise
            await self._pool.drain()  # the others lead to where this one did, and each would cost its own time limit
            raise OperationalError(f"the connection ended, or had no answer for {CALL_SECONDS:g} s: {error}") from error

    @contextlib.contextmanager
    def _limit(self, connection: AsyncConnection[Any]) -> Iterator[None]:
        """End the connection if the block takes too long.

        A task that were cancelled would wait for the server: the driver asks it to give the statement up.
        """
        timer = asyncio.get_running_loop().call_later(CALL_SECONDS, _cut, connection)
        try:
            yield
        finally:
            timer.cancel()


def _cut(connection: AsyncConnection[Any]) -> None:
    """Have whoever waits for an answer see the end of the connection."""
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
