"""Marks in PostgreSQL, by psycopg: committed with what the handler writes, or not at all."""

from __future__ import annotations

import asyncio
import contextlib

import psycopg
import pytest
from psycopg.errors import UndefinedTable
from psycopg.rows import scalar_row
from psycopg_pool import AsyncConnectionPool

from rmqd import AlreadyHandled, Message
from rmqd.once.group import once_of
from rmqd.wire.messages.once import once_in_group
from tests.consumer.blocks import block_of
from tests.servers.postgresql import PostgresqlServer

pytestmark = pytest.mark.process


def message_of(unique: str) -> Message:
    [message] = block_of([7], properties={"UNIQ_KEY": unique}).messages
    return message


@pytest.fixture
def orders(postgresql: PostgresqlServer, database: str) -> str:
    """The URL of a database with a table of orders."""
    postgresql.execute(database, "CREATE TABLE orders (id text)")
    return database


def rows(postgresql: PostgresqlServer, url: str) -> int:
    [(count,)] = postgresql.execute(url, "SELECT count(*) FROM orders")
    return int(count)


async def insert(url: str, unique: str, *, autocommit: bool = False) -> None:
    """One attempt of a handler."""
    connecting = psycopg.AsyncConnection.connect(url, autocommit=autocommit)
    async with await connecting as connection, message_of(unique).once(connection):
        await connection.execute("INSERT INTO orders VALUES (%s)", (unique,))


@pytest.mark.parametrize("autocommit", [False, True])
async def test_a_second_attempt_is_told_that_it_is_one(
    postgresql: PostgresqlServer, orders: str, autocommit: bool
) -> None:
    """Another message and another group are none."""
    await insert(orders, "a", autocommit=autocommit)
    for _ in range(2):
        with pytest.raises(AlreadyHandled, match="a was handled before"):
            await insert(orders, "a", autocommit=autocommit)
    await insert(orders, "b", autocommit=autocommit)
    assert rows(postgresql, orders) == 2
    token = once_in_group.set(once_of("mail"))
    await insert(orders, "a")
    once_in_group.reset(token)
    assert rows(postgresql, orders) == 3


async def test_what_fails_leaves_neither_effect_nor_mark(postgresql: PostgresqlServer, orders: str) -> None:
    """Also where the caller goes on in the same transaction, and commits it."""
    async with await psycopg.AsyncConnection.connect(orders) as connection:
        with contextlib.suppress(ZeroDivisionError):
            async with message_of("a").once(connection):
                await connection.execute("INSERT INTO orders VALUES ('a')")
                raise ZeroDivisionError
        await connection.execute("INSERT INTO orders VALUES ('noted elsewhere')")
    assert rows(postgresql, orders) == 1
    await insert(orders, "a")
    assert rows(postgresql, orders) == 2


async def test_the_mark_is_committed_by_the_callers_own_transaction(postgresql: PostgresqlServer, orders: str) -> None:
    """What is rolled back there has not happened, the table of marks included."""
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


async def test_attempts_side_by_side_have_one_effect(postgresql: PostgresqlServer, orders: str) -> None:
    """Also the first ones of all, which make the table: the others wait for the one that is ahead."""
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


async def test_the_other_with_is_refused_with_what_to_write(orders: str) -> None:
    with psycopg.connect(orders) as connection, pytest.raises(TypeError, match="without `async`"):
        async with message_of("a").once(connection):
            pass
    async with await psycopg.AsyncConnection.connect(orders) as asynchronous:
        with pytest.raises(TypeError, match="`async with`"), message_of("a").once(asynchronous):
            pass


async def test_a_table_that_is_gone_is_made_again(postgresql: PostgresqlServer, orders: str) -> None:
    """By the attempt after the one that missed it."""
    await insert(orders, "a")
    with pytest.raises(AlreadyHandled):
        await insert(orders, "a")
    postgresql.execute(orders, "DROP TABLE rmqd_handled")
    with pytest.raises(UndefinedTable):
        await insert(orders, "b")
    await insert(orders, "b")
    assert rows(postgresql, orders) == 2


async def test_the_connections_own_row_factory_is_left_alone(orders: str) -> None:
    connecting = psycopg.AsyncConnection.connect(orders, row_factory=scalar_row)
    async with await connecting as connection, message_of("a").once(connection):
        assert await (await connection.execute("SELECT 7")).fetchone() == 7
