"""`sql`: the statement of a cancelled call is cancelled on the server, and no connection is left open."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

import pytest
from sqlalchemy import NullPool, QueuePool, create_engine, event, text

from tests.handlers.messages import orders
from tests.handlers.sql_orders import EACH, MARIADB, ORDERS, POSTGRESQL, SERVERS, SQLITE, made, started
from tests.servers.shops import Shop
from tests.waiting import eventually

pytestmark = pytest.mark.process


WAITING: Final = {
    "postgresql": "SELECT count(*) FROM pg_locks WHERE NOT granted",
    # not the table innodb_trx, which does not change while it is read more than 10 times a second
    "mariadb": "SELECT variable_value FROM information_schema.global_status "
    "WHERE variable_name = 'Innodb_row_lock_current_waits'",
}


def waiting_in(shop: Shop) -> int:
    """The number of statements that wait for a row."""
    [(count,)] = shop.query(WAITING[shop.dialect])
    return int(count)


@pytest.fixture
def left_open() -> Iterator[list[Any]]:
    """The open connections of handlers. The list keeps the garbage collector from closing them."""
    found: list[Any] = []

    def opened(connection: Any, _: object) -> None:
        found.append(connection)

    def closed(connection: Any, _: object) -> None:
        found.remove(connection)

    event.listen(QueuePool, "connect", opened)
    event.listen(QueuePool, "close", closed)
    yield found
    event.remove(QueuePool, "connect", opened)
    event.remove(QueuePool, "close", closed)


def threads_of_handlers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("rmqd-sql")]


@SERVERS
@pytest.mark.parametrize("is_at_the_end", [False, True])
async def test_a_running_statement_is_cancelled(shop: Shop, is_at_the_end: bool) -> None:
    """The statement waits for a row of another transaction, which does not end."""
    shop.query(ORDERS)
    engine = create_engine(shop.url)
    with closing(engine.connect()) as other:
        other.execute(text("INSERT INTO orders (id, cents) VALUES ('1', 0)"))  # not committed, so others wait
        async with started(shop, max_connections=1) as handler:
            cancelled = asyncio.create_task(handler.handle(orders({"id": "1", "cents": 1})))
            await eventually(lambda: waiting_in(shop) == 1, "the statement waits for the row")
            cancelled.cancel()
            await asyncio.wait([cancelled])
            if not is_at_the_end:
                async with asyncio.timeout(60):
                    await handler.handle(orders({"id": "2", "cents": 2}))  # in the same thread
                assert waiting_in(shop) == 0
        await eventually(lambda: waiting_in(shop) == 0, "the statement no longer waits")
    engine.dispose()

    assert cancelled.cancelled()
    assert shop.query("SELECT id FROM orders") == ([] if is_at_the_end else [("2",)])


@EACH
@pytest.mark.parametrize("is_started", [False, True])
async def test_a_connection_of_a_thread_that_outlives_its_handler_is_closed(
    shop: Shop, left_open: list[Any], is_started: bool
) -> None:
    shop.query(ORDERS)
    comes_back, may_come_back = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        comes_back.set()
        may_come_back.wait(60)

    handler = made(shop)
    if is_started:
        await handler.start()
    event.listen(QueuePool, "checkin", hold)
    call = handler.handle(orders({"id": "1", "cents": 1})) if is_started else handler.start()
    cancelled = asyncio.create_task(call)
    assert await asyncio.to_thread(comes_back.wait, 60)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    if is_started:
        await handler.stop()
    assert threads_of_handlers(), "the stop does not wait for the thread"
    assert left_open
    may_come_back.set()
    await eventually(lambda: not threads_of_handlers(), "the thread has ended")
    event.remove(QueuePool, "checkin", hold)

    assert cancelled.cancelled()
    assert left_open == []


@pytest.mark.slow
@MARIADB
async def test_a_stop_does_not_wait_for_a_server_that_hangs(shop: Shop, left_open: list[Any]) -> None:
    """Two threads remain: one waits for a row, and the other cancels that statement."""
    shop.query(ORDERS)
    assert shop.server is not None
    with closing(create_engine(shop.url, poolclass=NullPool).connect()) as other:
        other.execute(text("INSERT INTO orders (id, cents) VALUES ('1', 0)"))
        try:
            async with started(shop, max_connections=1) as handler:
                cancelled = asyncio.create_task(handler.handle(orders({"id": "1", "cents": 1})))
                await eventually(lambda: waiting_in(shop) == 1, "the statement waits for the row")
                os.kill(shop.server.pid, signal.SIGSTOP)
                cancelled.cancel()
                await asyncio.wait([cancelled])
            assert len(threads_of_handlers()) == 2
        finally:
            os.kill(shop.server.pid, signal.SIGCONT)
        await eventually(lambda: not threads_of_handlers(), "the threads have ended")

    assert left_open == []
    assert shop.query("SELECT id FROM orders") == []


@POSTGRESQL
@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
async def test_a_statement_ends_even_if_the_server_does_not_cancel_it(
    shop: Shop, driver: str, left_open: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's main process, which handles cancellations, is stopped; the statement's process waits for a row.

    The `cancel` of psycopg2 would block all threads until the server continues.
    """
    shop = replace(shop, url=shop.url.replace("+psycopg:", f"+{driver}:"))
    monkeypatch.setattr("rmqd_handlers.sql.database.CONNECT_SECONDS", 0.2)
    shop.query(ORDERS)
    assert shop.server is not None
    with closing(create_engine(shop.url, poolclass=NullPool).connect()) as other:
        other.execute(text("INSERT INTO orders (id, cents) VALUES ('1', 0)"))
        async with started(shop, max_connections=1) as handler:
            cancelled = asyncio.create_task(handler.handle(orders({"id": "1", "cents": 1})))
            await eventually(lambda: waiting_in(shop) == 1, "the statement waits for the row")
            os.kill(shop.server.pid, signal.SIGSTOP)
            try:
                cancelled.cancel()
                await asyncio.wait([cancelled])
                await eventually(lambda: not left_open, "the connection is closed")
            finally:
                os.kill(shop.server.pid, signal.SIGCONT)
            async with asyncio.timeout(60):
                await handler.handle(orders({"id": "2", "cents": 2}))
    assert ("2",) in shop.query("SELECT id FROM orders")


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
            await handler.handle(orders({"id": "2", "cents": 2}))  # in the same thread, after the first

    assert cancelled.cancelled()
    assert shop.query("SELECT id FROM orders") == [("2",)]
