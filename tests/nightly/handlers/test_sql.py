"""`sql` on PostgreSQL and MariaDB: batches at once, and a server that is unavailable."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import yaml

from tests.handlers.messages import decided, orders
from tests.handlers.sql_orders import MARIADB, ORDERS, SERVERS, check_a_killed_server_is_waited_for, started
from tests.handlers.test_sql import in_group
from tests.servers.shops import Shop

pytestmark = pytest.mark.process

__all__ = ["in_group"]


@MARIADB
async def test_the_example_of_the_docs_writes_what_it_says(shop: Shop) -> None:
    page = (Path(__file__).parents[3] / "docs" / "destinations.md").read_text()
    section = page.split("\n## `sql`\n")[1].split("\n## ")[0]
    [first, _] = re.findall(r"^```yaml\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    [create] = re.findall(r"^```sql\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    [group] = yaml.safe_load(first)["groups"].values()
    shop.query(create)
    async with started(shop, **group["handler"]["options"] | {"url": shop.url}) as handler:
        for revision, cents in ((2, 20), (1, 10)):
            await handler.handle(orders({"order": {"id": "a", "cents": cents, "revision": revision}}))

    assert shop.query("SELECT id, cents, revision FROM orders") == [("a", 20, 2)]


@SERVERS
async def test_batches_that_write_the_same_keys_in_another_order_do_not_hinder_each_other(shop: Shop) -> None:
    shop.query(ORDERS)
    documents = [{"id": str(number), "cents": number} for number in range(200)]
    async with started(shop, mode="upsert", key=["id"], retry_for="30s") as handler:
        both = [orders(*documents), orders(*reversed(documents))]
        await asyncio.gather(*(handler.handle(both[number % 2]) for number in range(8)))

    assert shop.query("SELECT count(*) FROM orders") == [(200,)]


@SERVERS
async def test_a_database_that_stays_away_fails_the_batch(shop: Shop) -> None:
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
async def test_a_database_that_is_killed_and_comes_back_is_waited_for(shop: Shop, once: bool) -> None:
    await check_a_killed_server_is_waited_for(shop, once=once)
