"""Records of handled messages by psycopg: transactions, parallel attempts and a dropped table."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.errors import UndefinedTable
from psycopg.rows import scalar_row
from psycopg_pool import AsyncConnectionPool

from rmqd import AlreadyHandled
from tests.handler_api.once.test_psycopg import insert, message_of, orders, rows
from tests.servers.postgresql import PostgresqlServer

__all__ = ["orders"]

pytestmark = pytest.mark.process


async def test_the_record_is_committed_by_the_callers_transaction(postgresql: PostgresqlServer, orders: str) -> None:
    """A rollback also removes the record, and the table of records."""
    async with (
        await psycopg.AsyncConnection.connect(orders) as connection,
        connection.transaction(force_rollback=True),
        message_of("a").once(connection),
    ):
        await connection.execute("INSERT INTO orders VALUES ('a')")
    assert rows(postgresql, orders) == 0
    async with await psycopg.AsyncConnection.connect(orders) as connection, connection.transaction():
        await connection.execute("INSERT INTO orders VALUES ('before')")
        async with message_of("a").once(connection):
            await connection.execute("INSERT INTO orders VALUES ('a')")
    assert rows(postgresql, orders) == 2


async def test_parallel_attempts_have_one_effect(postgresql: PostgresqlServer, orders: str) -> None:
    """Also the very first attempts: one creates the table, and the others wait for it."""
    async with AsyncConnectionPool(orders, min_size=8, max_size=8) as pool:

        async def attempt() -> bool:
            try:
                async with pool.connection() as connection, message_of("a").once(connection):
                    await connection.execute("INSERT INTO orders VALUES ('a')")
            except AlreadyHandled:
                return False
            return True

        results = await asyncio.gather(*(attempt() for _ in range(8)))
    assert results.count(True) == 1
    assert rows(postgresql, orders) == 1


async def test_the_error_for_the_wrong_with_statement_names_the_right_one(orders: str) -> None:
    with psycopg.connect(orders) as connection, pytest.raises(TypeError, match="without `async`"):
        async with message_of("a").once(connection):
            pass
    async with await psycopg.AsyncConnection.connect(orders) as asynchronous:
        with pytest.raises(TypeError, match="`async with`"), message_of("a").once(asynchronous):
            pass


async def test_a_dropped_table_is_created_again(postgresql: PostgresqlServer, orders: str) -> None:
    """The next attempt after the failed one creates it."""
    await insert(orders, "a")
    with pytest.raises(AlreadyHandled):
        await insert(orders, "a")
    postgresql.execute(orders, "DROP TABLE rmqd_handled")
    with pytest.raises(UndefinedTable):
        await insert(orders, "b")
    await insert(orders, "b")
    assert rows(postgresql, orders) == 2


async def test_the_connections_row_factory_is_not_changed(orders: str) -> None:
    connecting = psycopg.AsyncConnection.connect(orders, row_factory=scalar_row)
    async with await connecting as connection, message_of("a").once(connection):
        assert await (await connection.execute("SELECT 7")).fetchone() == 7


def test_synchronous_handlers_use_with(postgresql: PostgresqlServer, orders: str) -> None:
    for is_first in (True, False):
        with psycopg.connect(orders) as connection:
            if is_first:
                with message_of("a").once(connection):
                    connection.execute("INSERT INTO orders VALUES ('a')")
                continue
            with pytest.raises(AlreadyHandled), message_of("a").once(connection):
                raise AssertionError("it was handled")
    assert rows(postgresql, orders) == 1
