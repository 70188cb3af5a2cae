"""`sql`: a cancelled call commits nothing, and its statement is cancelled."""

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
async def test_a_running_statement_of_sqlite_is_cancelled(shop: Shop) -> None:
    shop.query(ORDERS)
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT :id, count(*) FROM n"
    options: dict[str, object] = {"table": None, "columns": {}, "parameters": {"id": "$.id"}}
    begins = threading.Event()

    class Traced(sqlite3.Connection):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.set_trace_callback(lambda text: begins.set() if text.startswith("INSERT INTO orders") else None)

    with closing(sqlite3.connect(shop.url.removeprefix("sqlite:///"), isolation_level=None, timeout=0)) as other:

        def is_locked() -> bool:
            with suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
                return False
            return True

        options |= {"statement": f"INSERT INTO orders (id, cents) {endless}", "connect_args": {"factory": Traced}}
        async with started(shop, **options) as handler:
            cancelled = asyncio.create_task(handler.handle(orders({"id": "1"})))
            assert await asyncio.to_thread(begins.wait, 60)  # before that there is no statement to interrupt
            assert is_locked()
            cancelled.cancel()
            await asyncio.wait([cancelled])
            await eventually(lambda: not is_locked(), "the statement has released the write lock")

    assert cancelled.cancelled()
    assert shop.query("SELECT id FROM orders") == []
