"""`sql` and `postgresql`: dead letters, errors and logs tell what a PostgreSQL says of a row, without its values."""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import Any

import psycopg
import pytest

from tests.handlers.messages import decided, orders
from tests.handlers.sql_orders import COLUMNS, POSTGRESQL
from tests.handlers.test_database_errors import PLUGINS, SECRETS, make_table, refuse_by_trigger, started
from tests.servers.shops import Shop
from tests.waiting import eventually

pytestmark = pytest.mark.process


@POSTGRESQL
@PLUGINS
@pytest.mark.parametrize(
    ("errcode", "kind"),
    [("lock_not_available", psycopg.errors.LockNotAvailable), ("55000", psycopg.OperationalError)],
)
async def test_an_attempt_that_fails_is_logged_and_raised_without_a_value(
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
        record = await eventually(logged, "it waits")
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
async def test_an_error_that_may_not_be_the_rows_fault_is_raised_without_a_value(shop: Shop, plugin: str) -> None:
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
