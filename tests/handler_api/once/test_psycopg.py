"""Records in PostgreSQL, by psycopg: committed together with the handler's writes, or not at all."""

from __future__ import annotations

import contextlib
from functools import partial

import psycopg
import pytest

from rmqd import AlreadyHandled, Message
from rmqd.handler_api.once.once_group import once_for_group
from rmqd.wire.message_queue import Identity
from rmqd.wire.messages.message import once_in_group
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
async def test_a_second_attempt_raises_already_handled(
    postgresql: PostgresqlServer, orders: str, autocommit: bool
) -> None:
    """Attempts of another message or in another group are first attempts."""
    await insert(orders, "a", autocommit=autocommit)
    for _ in range(2):
        with pytest.raises(AlreadyHandled, match="a was handled before"):
            await insert(orders, "a", autocommit=autocommit)
    await insert(orders, "b", autocommit=autocommit)
    assert rows(postgresql, orders) == 2
    token = once_in_group.set(once_for_group("mail"))
    await insert(orders, "a")
    once_in_group.reset(token)
    assert rows(postgresql, orders) == 3


async def test_a_record_counts_for_one_cluster_and_one_replay(postgresql: PostgresqlServer, orders: str) -> None:
    """A record of 0.1.0 names no cluster and counts for each. A replay handles messages that were handled before."""
    await insert(orders, "b")
    postgresql.execute(orders, "DELETE FROM rmqd_handled")
    postgresql.execute(orders, "INSERT INTO rmqd_handled VALUES ('shop', 't1', 'a')")
    for cluster, replay, is_known in (("c1", "", True), ("c2", "", True), ("c1", "r1", False), ("c1", "r2", False)):
        once_in_group.set(once_for_group("shop", partial(Identity, cluster, "", "shop", replay=replay)))
        with pytest.raises(AlreadyHandled) if is_known else contextlib.nullcontext():
            await insert(orders, "a")
        await insert(orders, "c")
    assert rows(postgresql, orders) == 1 + 2 + 4


async def test_a_failed_attempt_leaves_neither_effect_nor_record(postgresql: PostgresqlServer, orders: str) -> None:
    """Also if the caller continues in the same transaction and commits it."""
    async with await psycopg.AsyncConnection.connect(orders) as connection:
        with contextlib.suppress(ZeroDivisionError):
            async with message_of("a").once(connection):
                await connection.execute("INSERT INTO orders VALUES ('a')")
                raise ZeroDivisionError
        await connection.execute("INSERT INTO orders VALUES ('noted elsewhere')")
    assert rows(postgresql, orders) == 1
    await insert(orders, "a")
    assert rows(postgresql, orders) == 2
