"""`sql` and `postgresql`: dead letters, errors and logs contain PostgreSQL's error without the values of the row."""

from __future__ import annotations

import asyncio
import logging
import traceback
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import psycopg
import pytest

from rmqd_handlers.postgresql import PostgreSql
from rmqd_handlers.sql import Sql
from tests.handlers.messages import decided, orders
from tests.handlers.postgresql_orders import started as postgresql_started
from tests.handlers.sql_orders import COLUMNS, POSTGRESQL
from tests.handlers.sql_orders import started as sql_started
from tests.servers.shops import Shop
from tests.waiting import eventually

pytestmark = pytest.mark.process

PLUGINS: Final = pytest.mark.parametrize("plugin", ["sql", "postgresql"])
SECRETS: Final = ("geheim", "gehe", "987654")


def started(plugin: str, shop: Shop, **options: object) -> AbstractAsyncContextManager[Sql | PostgreSql]:
    """The handler with this name, started for the block."""
    if plugin == "sql":
        return sql_started(shop, **options)
    return postgresql_started(shop.url.replace("+psycopg", ""), **options)


def refuse_by_trigger(shop: Shop, errcode: str) -> None:
    """Create a trigger that refuses more than 100 cents and quotes the row's values."""
    shop.query(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.cents > 100 THEN RAISE EXCEPTION "
        rf"'too dear\: % of %', NEW.cents, NEW.id USING ERRCODE = '{errcode}'; END IF; RETURN NEW; END $$"
    )
    shop.query("CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()")


def make_table(shop: Shop) -> None:
    """Create a table that refuses rows in several ways."""
    shop.query("CREATE TYPE mood AS ENUM ('good', 'bad')")
    shop.query(
        "CREATE TABLE orders (id varchar(40) PRIMARY KEY, cents bigint CHECK (cents >= 0), mood mood, at inet NOT NULL)"
    )
    shop.query("INSERT INTO orders VALUES ('geheim', 1, 'good', '127.0.0.1')")


@POSTGRESQL
@PLUGINS
async def test_a_reason_contains_the_error_without_values(shop: Shop, plugin: str) -> None:
    make_table(shop)
    refuse_by_trigger(shop, "MY001")
    good = {"id": "1", "cents": 1, "mood": "good", "at": "127.0.0.1"}
    batch = orders(
        good,
        {**good, "id": "geheim"},
        {**good, "id": "2", "cents": -987654},
        {**good, "id": "3", "mood": "geheim"},
        {**good, "id": "4", "mood": "gehe\nim"},  # the quoted value has a second line
        {**good, "id": "5", "at": "geheim"},
        {**good, "id": "6", "at": None, "mood": "bad"},
        {**good, "id": "987654 geheim", "cents": 987654},  # one value begins with the other
    )
    columns = {name: f"$.{name}" for name in good}
    async with started(plugin, shop, columns=columns) as handler:
        await handler.handle(batch)

    reasons = decided(batch)
    assert {place: outcome for place, (outcome, _) in reasons.items()} == dict.fromkeys(range(1, 8), "dead_letter")
    words = [
        ("UniqueViolation 23505", "constraint orders_pkey"),
        ("CheckViolation 23514", "constraint orders_cents_check"),
        ("InvalidTextRepresentation 22P02", "invalid input value for enum mood: …"),
        ("InvalidTextRepresentation 22P02", "invalid input value for enum mood: …"),
        ("InvalidTextRepresentation 22P02", "invalid input syntax for type inet: …"),
        ("NotNullViolation 23502", 'null value in column "at" of relation "orders"'),
        ("MY001", "too dear: … of …"),
    ]
    for place, expected in enumerate(words, 1):
        assert all(word in reasons[place][1] for word in expected), reasons[place][1]
    assert not [reason for _, reason in reasons.values() if any(secret in reason for secret in SECRETS)]


@POSTGRESQL
@PLUGINS
@pytest.mark.parametrize(
    ("errcode", "kind"),
    [("lock_not_available", psycopg.errors.LockNotAvailable), ("55000", psycopg.OperationalError)],
)
async def test_a_failed_attempt_is_logged_and_raised_without_values(
    shop: Shop, plugin: str, caplog: pytest.LogCaptureFixture, errcode: str, kind: type[Exception]
) -> None:
    make_table(shop)
    refuse_by_trigger(shop, errcode)
    columns = {**COLUMNS, "at": "$.at"}
    batch = orders({"id": "geheim too", "cents": 987654, "at": "127.0.0.1"})
    caplog.set_level(logging.WARNING)

    def logged() -> Any:
        return next((one for one in caplog.records if one.msg == "handler.counterpart_away"), None)

    async with started(plugin, shop, columns=columns, retry_for="1h") as handler:
        waiting = asyncio.create_task(handler.handle(batch))
        record = await eventually(logged, "the failure is logged")
        waiting.cancel()
        await asyncio.wait([waiting])
    async with started(plugin, shop, columns=columns, retry_for="0s") as handler:
        with pytest.raises(Exception, match="too dear: … of …") as raised:
            await handler.handle(batch)

    assert decided(batch) == {}
    assert plugin == "sql" or isinstance(raised.value, kind)  # as `retry.on` of a group may name it
    told = [*traceback.format_exception(raised.value), record.error]
    assert not [line for line in told if any(secret in line for secret in SECRETS)]


@POSTGRESQL
@PLUGINS
async def test_an_error_that_may_not_be_the_rows_fault_is_raised_without_values(shop: Shop, plugin: str) -> None:
    make_table(shop)
    shop.query(
        "CREATE FUNCTION call() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN EXECUTE format('SELECT no_such(%L)', NEW.id); RETURN NEW; END $$"
    )
    shop.query("CREATE TRIGGER call BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION call()")
    batch = orders({"id": "geheim", "cents": 1, "at": "127.0.0.1"})
    async with started(plugin, shop, columns={**COLUMNS, "at": "$.at"}) as handler:
        with pytest.raises(Exception, match="UndefinedFunction 42883: function no_such") as raised:
            await handler.handle(batch)

    assert not [line for line in traceback.format_exception(raised.value) if "geheim" in line]
