"""The running handler `postgresql` for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rmqd_handlers.postgresql import PostgreSql
from tests.handlers.sql_orders import COLUMNS


@asynccontextmanager
async def started(url: str, **options: object) -> AsyncIterator[PostgreSql]:
    """Run the handler, by default for the table orders."""
    given = {"url": url, "table": "orders", "columns": COLUMNS, **options}
    handler = PostgreSql(PostgreSql.Options.model_validate(given))
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()
