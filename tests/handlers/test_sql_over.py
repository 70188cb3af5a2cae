"""`sql`: a call that is over commits nothing, and its statement is cancelled."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.handlers.messages import orders
from tests.handlers.sql_orders import ORDERS, SQLITE, started
from tests.servers.shops import Shop
from tests.waiting import eventually

pytestmark = pytest.mark.process


@SQLITE
async def test_a_call_that_is_cancelled_while_it_waits_for_the_database_commits_nothing(shop: Shop) -> None:
    shop.query(ORDERS)
    begins = threading.Event()

    class Traced(sqlite3.Connection):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.set_trace_callback(lambda text: begins.set() if text == "BEGIN IMMEDIATE" else None)

    with closing(sqlite3.connect(shop.url.removeprefix("sqlite:///"), isolation_level=None)) as other:
        arguments = {"factory": Traced, "timeout": 60}
        async with started(shop, connect_args=arguments, max_connections=1) as handler:
            other.execute("BEGIN IMMEDIATE")
            begins.clear()
            cancelled = asyncio.create_task(handler.handle(orders({"id": "1", "cents": 1})))
            assert await asyncio.to_thread(begins.wait, 60)
            cancelled.cancel()
            await asyncio.wait([cancelled])
            other.execute("COMMIT")
            await handler.handle(orders({"id": "2", "cents": 2}))  # by the same thread, behind the first

    assert cancelled.cancelled()
    assert shop.query("SELECT id FROM orders") == [("2",)]


@SQLITE
async def test_a_statement_of_sqlite_that_is_under_way_is_cancelled(shop: Shop) -> None:
    shop.query(ORDERS)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT :id, count(*) FROM n"
    options = {"table": None, "columns": {}, "parameters": {"id": "$.id"}}
    with closing(sqlite3.connect(shop.url.removeprefix("sqlite:///"), isolation_level=None, timeout=0)) as other:

        def is_locked() -> bool:
            with suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
                return False
            return True

        async with started(shop, statement=f"INSERT INTO orders (id, cents) {endless}", **options) as handler:
            cancelled = asyncio.create_task(handler.handle(orders({"id": "1"})))
            await eventually(is_locked, "it writes")
            cancelled.cancel()
            await asyncio.wait([cancelled])
            await eventually(lambda: not is_locked(), "it does not write any longer")

    assert cancelled.cancelled()
    assert shop.query("SELECT id FROM orders") == []
