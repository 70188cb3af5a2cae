"""Tables, databases and the running handler for tests of `sql`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from rmqd import Batch
from rmqd_handlers.sql import Sql
from tests.handlers.messages import make_batch, make_message
from tests.servers.shops import DIALECTS, Shop

ORDERS: Final = (
    "CREATE TABLE orders (id varchar(40) PRIMARY KEY NOT NULL, cents bigint CHECK (cents >= 0), version int)"
)
LOOSE: Final = "CREATE TABLE orders (id varchar(40), cents bigint)"
COLUMNS: Final = {"id": "$.id", "cents": "$.cents"}
STATEMENT: Final = {
    "table": None,
    "columns": {},
    "statement": "INSERT INTO orders (id, cents) VALUES (:id, :cents + 1)",
    "parameters": COLUMNS,
}
EACH: Final = pytest.mark.parametrize("shop", DIALECTS, indirect=True)
SERVERS: Final = pytest.mark.parametrize("shop", ["postgresql", "mariadb"], indirect=True)
POSTGRESQL: Final = pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
MARIADB: Final = pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
SQLITE: Final = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)


def made(shop: Shop, **options: object) -> Sql:
    """The handler, by default for the table orders."""
    given = {"url": shop.url, "table": "orders", "columns": COLUMNS, **options}
    return Sql(Sql.Options.model_validate(given))


@asynccontextmanager
async def started(shop: Shop, **options: object) -> AsyncIterator[Sql]:
    """Run the handler that `made` returns."""
    handler = made(shop, **options)
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()


async def check_a_killed_server_is_waited_for(shop: Shop, *, once: bool) -> None:
    """Write before and while the server is killed and restarted: each message has one row."""
    shop.query(LOOSE if once else ORDERS)
    assert shop.server is not None
    async with started(shop, key=[] if once else ["id"], once=once, max_connections=3) as handler:

        def message(number: int) -> Batch:
            return make_batch(make_message(b'{"id": "%d", "cents": 1}' % number, queue_offset=number))

        await asyncio.gather(*(handler.handle(message(number)) for number in range(6)))
        shop.server.kill()
        waiting = [asyncio.create_task(handler.handle(message(number))) for number in range(6, 12)]
        await asyncio.to_thread(shop.server.start)
        await asyncio.gather(*waiting)

    assert shop.query("SELECT count(*), count(DISTINCT id) FROM orders") == [(12, 12)]
