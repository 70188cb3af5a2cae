"""`sql`: a row for each key in three databases, and no message lost while a database is unavailable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from rmqd.handler_api.once.once_group import once_for_group
from rmqd.testing import RocketMQ
from rmqd.wire.messages.message import once_in_group
from rmqd_handlers.sql import Sql
from tests.handlers.messages import make_batch, make_message, orders
from tests.handlers.sql_orders import (
    COLUMNS,
    LOOSE,
    ORDERS,
    POSTGRESQL,
    SQLITE,
    check_a_killed_server_is_waited_for,
    started,
)
from tests.servers.shops import Shop

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def in_group() -> Iterator[None]:
    """Run each test in the context of a handler of the group `shop`."""
    token = once_in_group.set(once_for_group("shop"))
    yield
    once_in_group.reset(token)


TYPES = {
    "sqlite": "amount numeric, whole json, body blob, paid boolean, at datetime, day date, ratio float",
    "postgresql": "amount numeric(14,4), whole jsonb, body bytea, paid boolean, at timestamptz, day date, ratio real,"
    " tags text[], uid uuid",
    "mariadb": "amount decimal(14,4), whole json, body blob, paid boolean, at datetime, day date, ratio float",
}


async def test_columns_get_the_values_of_their_expressions(shop: Shop) -> None:
    query = shop.query
    common = (
        "id varchar(40), n int, msg_id varchar(64), colour varchar(9), born_ms bigint, born {}, missing int, line {}"
    )
    times = {"sqlite": "datetime", "postgresql": "timestamp", "mariadb": "timestamp NULL"}[shop.dialect]
    query(f"CREATE TABLE everything ({common.format(times, 'varchar(99)')}, {TYPES[shop.dialect]})")
    document = {
        "id": "ü-1",
        "n": "7",
        "amount": 1234567.0001,
        "paid": True,
        "at": "2026-01-02T03:04:05+02:00",
        "day": "2026-01-02",
        "ratio": 0.5,
        "line": {"sku": "a", "price": 1.50},
        "tags": ["a", 'quo"te', None],
        "uid": "8b5b6a2e-7f0f-4f6e-9df0-1d4c2a1f0a01",
    }
    columns = {name: f"$.{name}" for name in document if shop.dialect == "postgresql" or name not in ("tags", "uid")}
    columns |= {"whole": "$", "body": "body", "msg_id": "msg_id", "colour": "properties.colour"}
    columns |= {"born": "born_timestamp", "born_ms": "born_timestamp", "missing": "$.no[7].such"}
    body = json.dumps(document).encode()
    message = make_message(body, properties={"colour": "blue"})
    async with started(shop, table="everything", columns=columns) as handler:
        await handler.handle(make_batch(message))

    [row] = query("SELECT id, n, msg_id, colour, born_ms, missing, line FROM everything")
    assert row == ("ü-1", 7, message.msg_id, "blue", message.born_timestamp, None, '{"sku":"a","price":1.5}')
    [(amount, whole, stored, paid)] = query("SELECT amount, whole, body, paid FROM everything")
    assert Decimal(str(amount)) == Decimal("1234567.0001")
    assert (json.loads(whole) if isinstance(whole, str) else whole) == document
    assert (bytes(stored), bool(paid)) == (body, True)
    [(at, day, born)] = query("SELECT at, day, born FROM everything")
    at, born = (datetime.fromisoformat(str(one)) for one in (at, born))
    assert (at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)) == datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)
    assert (str(day), born.isoformat()) == ("2026-01-02", "2026-01-01T00:00:00")
    if shop.dialect == "postgresql":
        assert query("SELECT tags, uid::text FROM everything") == [(document["tags"], document["uid"])]


@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_a_repeated_key_adds_no_row(shop: Shop, mode: str) -> None:
    shop.query(ORDERS)
    async with started(shop, mode=mode, key=["id"]) as handler:
        batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 2}, {"id": "1", "cents": 3})
        for _ in range(3):
            await handler.handle(batch)

    newest = 3 if mode == "upsert" else 1
    assert shop.query("SELECT id, cents FROM orders ORDER BY id") == [("1", newest), ("2", 2)]


async def test_a_row_is_not_replaced_by_an_older_version(shop: Shop) -> None:
    shop.query(ORDERS)
    columns = {"version": "$.v"} | COLUMNS
    async with started(shop, mode="upsert", key=["id"], columns=columns, version="version") as handler:
        await handler.handle(orders({"id": "1", "cents": 2, "v": 2}, {"id": "1", "cents": 1, "v": 1}))
        await handler.handle(orders({"id": "1", "cents": 0}))
        assert shop.query("SELECT cents, version FROM orders") == [(2, 2)]
        await handler.handle(orders({"id": "1", "cents": 3, "v": 2}))
        assert shop.query("SELECT cents, version FROM orders") == [(3, 2)]


@SQLITE
def test_a_group_writes_each_message_once(shop: Shop) -> None:
    """Also the messages of a batch that is retried because one of them was refused."""
    shop.query(LOOSE.replace("bigint", "bigint CHECK (cents >= 0)"))
    options = {"url": shop.url, "table": "orders", "columns": COLUMNS, "once": True, "on_invalid": "retry"}
    with RocketMQ() as running:
        running.create_topic("orders")
        for number in (1, 2, -3, 4):
            running.send("orders", json.dumps({"id": str(number), "cents": number}))
        keys: dict[str, Any] = {"consume_mode": "orderly", "consume_message_batch_max_size": 10}
        keys |= {"max_reconsume_times": 2, "suspend_current_queue_time": "10ms"}
        running.run_handler(Sql, topic="orders", group="shop", options=options, **keys)
        assert len(running.dead_letters("shop")) == 1

    assert shop.query("SELECT id FROM orders ORDER BY id") == [("1",), ("2",), ("4",)]


@POSTGRESQL
async def test_calls_wait_until_a_killed_database_is_restarted(shop: Shop) -> None:
    await check_a_killed_server_is_waited_for(shop, once=True)
