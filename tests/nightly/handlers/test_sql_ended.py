"""`sql`: a full disk, a statement that ends its transaction, and a row that is refused at commit."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from tests.handlers.messages import decided, orders
from tests.handlers.sql_orders import COLUMNS, LOOSE, ORDERS, SQLITE, started
from tests.handlers.test_sql_ended import in_group
from tests.servers.shops import Shop

__all__ = ["in_group"]

pytestmark = pytest.mark.process


PAGES = 15


class SmallDisk(sqlite3.Connection):
    """A connection whose file cannot grow and whose cache is smaller than a batch."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.execute(f"PRAGMA max_page_count={PAGES}")
        self.execute("PRAGMA cache_size=5")


@SQLITE
@pytest.mark.parametrize("once", [False, True])
async def test_a_full_disk_fails_the_batch_and_acknowledges_nothing(shop: Shop, once: bool) -> None:
    """Also if a row was refused before, so that the batch is written row by row."""
    shop.query(LOOSE.replace("bigint", "bigint CHECK (cents >= 0)"))
    documents = [{"id": f"{number:03}" + "x" * 900, "cents": -1 if number == 1 else 1} for number in range(100)]
    batch = orders(*documents)
    async with started(shop, once=once, retry_for="0s", connect_args={"factory": SmallDisk}) as handler:
        with pytest.raises(Exception, match="SQLITE_FULL"):
            await handler.handle(batch)

    assert decided(batch) == {}
    assert shop.query("SELECT count(*) FROM orders") == [(0,)]


@SQLITE
async def test_a_statement_that_ends_its_transaction_acknowledges_nothing(shop: Shop) -> None:
    shop.query(ORDERS)
    options: dict[str, object] = {"table": None, "columns": {}, "statement": "ROLLBACK", "parameters": {}}
    batch = orders({"id": "1", "cents": 1})
    async with started(shop, **options) as handler:
        with pytest.raises(Exception, match=r"(?i)ended before its COMMIT|no such savepoint"):
            await handler.handle(batch)

    assert decided(batch) == {}


@SQLITE
async def test_a_row_that_is_refused_at_commit_does_not_affect_other_rows(shop: Shop) -> None:
    shop.query("CREATE TABLE customers (id varchar(40) PRIMARY KEY)")
    shop.query(
        "CREATE TABLE orders (id varchar(40), cents bigint REFERENCES customers (id) DEFERRABLE INITIALLY DEFERRED)"
    )

    class Checked(sqlite3.Connection):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.execute("PRAGMA foreign_keys=ON")

    batch = orders({"id": "1"}, {"id": "2", "cents": 7}, {"id": "3"})
    async with started(shop, columns=COLUMNS, connect_args={"factory": Checked}) as handler:
        await handler.handle(batch)

    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {0: "ack", 1: "retry", 2: "ack"}
    assert shop.query("SELECT id FROM orders ORDER BY id") == [("1",), ("3",)]
