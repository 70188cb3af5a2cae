"""`sql` on each database: parallel batches, statements, repeated messages, and an unavailable server."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from rmqd import AlreadyHandled
from tests.handlers.messages import decided, orders
from tests.handlers.sql_orders import (
    EACH,
    LOOSE,
    MARIADB,
    ORDERS,
    SERVERS,
    SQLITE,
    STATEMENT,
    check_a_killed_server_is_waited_for,
    started,
)
from tests.handlers.test_sql import in_group
from tests.servers.shops import Shop

pytestmark = pytest.mark.process

__all__ = ["in_group"]


@MARIADB
async def test_the_example_in_the_docs_works_as_described(shop: Shop) -> None:
    page = (Path(__file__).parents[3] / "docs" / "destinations.md").read_text()
    section = page.split("\n## `sql`\n")[1].split("\n## ")[0]
    [first, _] = re.findall(r"^```yaml\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    [group] = yaml.safe_load(first)["groups"].values()
    shop.query("CREATE TABLE orders (id varchar(64) PRIMARY KEY, cents bigint, revision int, ordered_at datetime(3))")
    async with started(shop, **group["handler"]["options"] | {"url": shop.url}) as handler:
        for revision, cents in ((2, 20), (1, 10)):
            await handler.handle(orders({"order": {"id": "a", "cents": cents, "revision": revision}}))

    assert shop.query("SELECT id, cents, revision FROM orders") == [("a", 20, 2)]


@SERVERS
async def test_parallel_batches_with_the_same_keys_in_another_order_succeed(shop: Shop) -> None:
    shop.query(ORDERS)
    documents = [{"id": str(number), "cents": number} for number in range(200)]
    async with started(shop, mode="upsert", key=["id"], retry_for="30s") as handler:
        both = [orders(*documents), orders(*reversed(documents))]
        await asyncio.gather(*(handler.handle(both[number % 2]) for number in range(8)))

    assert shop.query("SELECT count(*) FROM orders") == [(200,)]


@SERVERS
async def test_a_batch_fails_if_the_database_stays_unavailable(shop: Shop) -> None:
    shop.query(ORDERS)
    assert shop.server is not None
    async with started(shop, retry_for="100ms") as handler:
        shop.server.kill()
        batch = orders({"id": "1", "cents": 1})
        try:
            with pytest.raises(
                Exception, match=r"terminating connection|server closed|refused|Can.t connect|Lost connection"
            ):
                await handler.handle(batch)
        finally:
            shop.server.start()
        assert decided(batch) == {}  # so that it is retried as a whole
        await handler.handle(batch)

    assert shop.query("SELECT id FROM orders") == [("1",)]


@SERVERS
@pytest.mark.parametrize("once", [False, True])
async def test_calls_wait_until_a_killed_database_is_restarted(shop: Shop, once: bool) -> None:
    await check_a_killed_server_is_waited_for(shop, once=once)


@EACH
async def test_a_statement_is_run_for_each_message(shop: Shop) -> None:
    shop.query("CREATE TABLE accounts (id varchar(40), balance numeric(12,2), seen varchar(99))")
    shop.query("INSERT INTO accounts VALUES ('ada', 1, ''), ('grace', 1, '')")
    options = {
        "table": None,
        "columns": {},
        "statement": "UPDATE accounts SET balance = balance + :cents, seen = "
        r"CONCAT(:seen, '\:', :whole) WHERE id = :id",
        "parameters": {"id": "$.id", "cents": "$.cents", "seen": "born_timestamp", "whole": "$.list"},
    }
    if shop.dialect == "sqlite":
        options["statement"] = (
            str(options["statement"])
            .replace("CONCAT", "format")
            .replace(r"(:seen, '\:', :whole)", r"('%d\:%s', :seen, :whole)")
        )
    elif shop.dialect == "postgresql":
        options["statement"] = (
            str(options["statement"]).replace(":seen", "CAST(:seen AS text)").replace(":whole", "CAST(:whole AS text)")
        )
    async with started(shop, **options) as handler:
        await handler.handle(
            orders({"id": "ada", "cents": 1.50, "list": [1.50]}, {"id": "none"}, {"id": "grace", "cents": 2})
        )

    found = shop.query("SELECT id, balance, seen FROM accounts ORDER BY id")
    assert [(id_, float(balance)) for id_, balance, _ in found] == [("ada", 2.5), ("grace", 3.0)]
    assert found[0][2] == "1767225600000:[1.5]"


@SQLITE
async def test_the_later_message_wins_if_the_database_considers_two_keys_equal(shop: Shop) -> None:
    found = {}
    for kind, keys in (("text COLLATE NOCASE", ("abc", "ABC")), ("numeric", (7.0, 7))):
        shop.query("DROP TABLE IF EXISTS orders")
        shop.query(f"CREATE TABLE orders (id {kind} PRIMARY KEY, cents int)")
        async with started(shop, mode="upsert", key=["id"]) as handler:
            await handler.handle(orders(*({"id": key, "cents": place} for place, key in enumerate(keys))))
        found[kind] = shop.query("SELECT cents FROM orders")

    assert found == {"text COLLATE NOCASE": [(1,)], "numeric": [(1,)]}


async def test_without_a_key_a_message_that_comes_again_is_written_again_unless_it_is_marked(shop: Shop) -> None:
    shop.query(LOOSE)
    found = []
    for options, once in ((one, once) for one in ({}, STATEMENT) for once in (False, True)):
        shop.query("DELETE FROM orders")
        shop.query("DROP TABLE IF EXISTS rmqd_handled")
        async with started(shop, **options, once=once) as handler:
            for _ in range(2):
                await handler.handle(orders({"id": "1", "cents": 1}, {"id": "2", "cents": 2}))
        found += shop.query("SELECT count(*) FROM orders")

    assert found == [(4,), (2,), (4,), (2,)]


async def test_a_message_alone_that_was_handled_is_told_so_that_it_is_counted(shop: Shop) -> None:
    shop.query(LOOSE)
    async with started(shop, once=True) as handler:
        await handler.handle(orders({"id": "1", "cents": 1}))
        with pytest.raises(AlreadyHandled):
            await handler.handle(orders({"id": "1", "cents": 1}))

    assert shop.query("SELECT count(*) FROM orders") == [(1,)]


async def test_what_is_refused_leaves_no_mark(shop: Shop) -> None:
    """Refused messages have no record, so that a later delivery handles them."""
    shop.query(ORDERS)
    async with started(shop, once=True) as handler:
        await handler.handle(orders({"id": "0", "cents": 0}))
        batch = orders(b"no JSON", {"id": "1", "cents": -1}, {"id": "2", "cents": 2})
        await handler.handle(batch)

    assert sorted(decided(batch)) == [0, 1]
    assert shop.query("SELECT id FROM orders ORDER BY id") == [("0",), ("2",)]
    assert shop.query("SELECT count(*) FROM rmqd_handled") == [(2,)]


@SQLITE
async def test_calls_wait_while_another_connection_writes_to_the_file(shop: Shop) -> None:
    shop.query(ORDERS)
    with closing(sqlite3.connect(shop.url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        async with started(shop, connect_args={"timeout": 0.05}) as handler:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(handler.handle(orders({"id": "1", "cents": 1})))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            other.execute("COMMIT")
            await waiting

    assert shop.query("SELECT id FROM orders") == [("1",)]
