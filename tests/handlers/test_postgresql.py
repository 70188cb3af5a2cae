"""`postgresql`: a row for each key, and no message lost while the database is unavailable."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.handlers.messages import decided, make_batch, make_message, orders
from tests.handlers.postgresql_orders import started
from tests.handlers.sql_orders import COLUMNS
from tests.servers.postgresql import PostgresqlServer

pytestmark = pytest.mark.process

Query = Callable[..., list[tuple[Any, ...]]]
ORDERS = "CREATE TABLE orders (id text PRIMARY KEY, cents bigint CHECK (cents >= 0), seen text, version int)"


@pytest.fixture
def query(postgresql: PostgresqlServer, database: str) -> Query:
    """Runs statements in the test's database."""
    return lambda statement, *parameters: postgresql.execute(database, statement, parameters)


async def test_columns_get_the_values_of_their_expressions(database: str, query: Query) -> None:
    query(
        "CREATE TABLE everything (id uuid, amount numeric(12,4), tags text[], whole jsonb, name jsonb, sku text, n int,"
        " raw bytea, body text, msg_id text, colour text, born timestamptz, born_ms bigint, missing int, paid boolean)"
    )
    document = {
        "id": "8b5b6a2e-7f0f-4f6e-9df0-1d4c2a1f0a01",
        "amount": 1234567.0001,
        "tags": ["a", 'quo"te\\', None],
        "lines": [{"sku": "ü-1", "n": 3}],
        "odd name": "x",
        "paid": True,
    }
    columns = {
        "id": "$.id",
        "amount": "$.amount",
        "tags": "$.tags",
        "whole": "$",
        "name": "$['odd name']",
        "sku": "$.lines[0].sku",
        "n": "$.lines[0].n",
        "raw": "body",
        "body": "body",
        "msg_id": "msg_id",
        "colour": "properties.colour",
        "born": "born_timestamp",
        "born_ms": "born_timestamp",
        "missing": "$.lines[7].none",
        "paid": "$.paid",
    }
    body = json.dumps(document).encode()
    message = make_message(body, properties={"colour": "blue"})
    for mode in ("insert", "copy"):
        async with started(database, table="everything", columns=columns, mode=mode) as handler:
            await handler.handle(make_batch(message))

    once, again = query("SELECT id::text, amount::text, tags, whole, name, sku, n, raw, body FROM everything")
    assert once == again
    assert once[:2] == (document["id"], "1234567.0001")
    assert once[2:] == (document["tags"], document, "x", "ü-1", 3, body, body.decode())
    assert query(
        "SELECT DISTINCT msg_id, colour, born_ms, missing, paid, extract(epoch FROM born)::int FROM everything"
    ) == [(message.msg_id, "blue", message.born_timestamp, None, True, message.born_timestamp // 1000)]


@pytest.mark.parametrize("mode", ["insert", "copy", "upsert"])
async def test_a_repeated_key_adds_no_row(database: str, query: Query, mode: str) -> None:
    query(ORDERS)
    async with started(database, mode=mode, key=["id"]) as handler:
        batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 2}, {"id": "1", "cents": 3})
        for _ in range(3):
            await handler.handle(batch)

    newest = 3 if mode == "upsert" else 1
    assert query("SELECT id, cents FROM orders ORDER BY id") == [("1", newest), ("2", 2)]


async def test_a_row_is_not_replaced_by_an_older_version(database: str, query: Query) -> None:
    query(ORDERS)
    columns = COLUMNS | {"version": "$.v"}
    async with started(database, mode="upsert", key=["id"], columns=columns, version="version") as handler:
        await handler.handle(orders({"id": "1", "cents": 2, "v": 2}, {"id": "1", "cents": 1, "v": 1}))
        await handler.handle(orders({"id": "1", "cents": 0}))

    assert query("SELECT cents, version FROM orders") == [(2, 2)]


@pytest.mark.parametrize("mode", ["insert", "copy", "upsert"])
async def test_messages_that_cannot_be_rows_are_dead_lettered_and_others_are_written(
    database: str, query: Query, mode: str
) -> None:
    query(ORDERS)
    async with started(database, mode=mode, key=["id"]) as handler:
        batch = orders(
            {"id": "1", "cents": 1},
            b"no JSON",
            {"id": "2", "cents": "two"},
            {"id": "3", "cents": -3},
            {"id": "4\x00", "cents": 4},
            {"cents": 5},
            b'{"id": "half of a character: \\ud800", "cents": 6}',
            {"id": "".join(map(chr, range(0x4E00, 0x9000))), "cents": 7},
            b'{"id": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"id": "8", "cents": 1e9999999999999999999}',
            {"id": "9", "cents": 9},
        )
        await handler.handle(batch)

    assert query("SELECT id FROM orders ORDER BY id") == [("1",), ("9",)]
    reasons = decided(batch)
    assert {place: outcome for place, (outcome, _) in reasons.items()} == dict.fromkeys(range(1, 10), "dead_letter")
    assert "not JSON" in reasons[1][1]
    assert reasons[2][1] == "InvalidTextRepresentation 22P02: invalid input syntax for type bigint: …"
    assert "check constraint" in reasons[3][1]
    assert "not-null constraint" in reasons[5][1]
    assert "not UTF-8" in reasons[6][1]
    assert "index row" in reasons[7][1]
    assert "too deeply" in reasons[8][1]
    assert "exponent" in reasons[9][1]


@pytest.mark.parametrize("mode", ["insert", "copy"])
async def test_only_a_text_outside_the_encoding_of_the_database_is_a_dead_letter(
    postgresql: PostgresqlServer, mode: str
) -> None:
    url = postgresql.database("ENCODING LATIN1 TEMPLATE template0")
    postgresql.execute(url, ORDERS)
    async with started(url, mode=mode) as handler:
        batch = orders({"id": "grün", "cents": 1}, {"id": "緑", "cents": 2})
        await handler.handle(batch)

    assert postgresql.execute(url, "SELECT id FROM orders") == [("grün",)]
    assert decided(batch)[1][0] == "dead_letter"


@pytest.mark.parametrize("mode", ["insert", "copy", "upsert"])
async def test_names_may_contain_a_percent_sign(database: str, query: Query, mode: str) -> None:
    query('CREATE TABLE "100%s" (id text PRIMARY KEY, "%" bigint)')
    given = {"table": "100%s", "columns": {"id": "$.id", "%": "$.cents"}, "key": ["id"]}
    async with started(database, mode=mode, **given) as handler:
        await handler.handle(orders({"id": "1", "cents": 1}, {"id": "2", "cents": "two"}))

    assert query('SELECT * FROM "100%s"') == [("1", 1)]


async def check_a_killed_database_is_waited_for(server: PostgresqlServer, url: str, mode: str) -> None:
    server.execute(url, ORDERS)
    async with started(url, mode=mode, key=["id"], max_connections=3) as handler:
        await asyncio.gather(*(handler.handle(orders({"id": f"before {n}", "cents": n})) for n in range(6)))
        server.kill()
        waiting = [asyncio.create_task(handler.handle(orders({"id": f"during {n}", "cents": n}))) for n in range(6)]
        await asyncio.to_thread(server.start)
        await asyncio.gather(*waiting)

    assert server.execute(url, "SELECT count(*) FROM orders") == [(12,)]


async def test_calls_wait_until_a_killed_database_is_restarted(postgresql: PostgresqlServer, database: str) -> None:
    await check_a_killed_database_is_waited_for(postgresql, database, "insert")


async def test_a_table_that_does_not_fit_fails_the_start(database: str, query: Query) -> None:
    query(ORDERS)
    cases: list[tuple[dict[str, object], str]] = [
        ({"table": "none"}, "no table none"),
        ({"columns": {"id": "$.id", "colour": "$.c"}}, "no column colour; it has id, cents"),
        ({"key": ["cents"]}, r"CREATE UNIQUE INDEX ON orders \(cents\)"),
    ]
    for options, words in cases:
        with pytest.raises(Exception, match=words):
            async with started(database, **options):
                pass
