"""`sql`: a call that is over commits nothing, though its thread is still at work."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from typing import Any

import pytest

from tests.handlers.messages import orders
from tests.handlers.sql_orders import ORDERS, SQLITE, started
from tests.servers.shops import Shop

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
