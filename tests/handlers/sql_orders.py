"""What tests of the handler `sql` share: its table, batches of orders, and the databases by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from rmqd_handlers.sql import Sql
from tests.servers.shops import Shop

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
SERVERS: Final = pytest.mark.parametrize("shop", ["postgresql", "mariadb"], indirect=True)
POSTGRESQL: Final = pytest.mark.parametrize("shop", ["postgresql"], indirect=True)
MARIADB: Final = pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
SQLITE: Final = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)


def made(shop: Shop, **options: object) -> Sql:
    """The handler, of the table orders if nothing else is said."""
    given = {"url": shop.url, "table": "orders", "columns": COLUMNS, **options}
    return Sql(Sql.Options.model_validate(given))


@asynccontextmanager
async def started(shop: Shop, **options: object) -> AsyncIterator[Sql]:
    """As `made`, from its start to its end."""
    handler = made(shop, **options)
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()
