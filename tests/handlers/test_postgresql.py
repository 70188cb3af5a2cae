"""`postgresql`: rows as the messages have them, each key once, and nothing lost while the database is away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from rmqd import testing
from tests.handlers.messages import decided, make_batch, make_message, orders
from tests.handlers.postgresql_orders import started
from tests.handlers.sql_orders import COLUMNS
from tests.servers.postgresql import PostgresqlServer
from tests.waiting import eventually

pytestmark = pytest.mark.process

Query = Callable[..., list[tuple[Any, ...]]]
ORDERS = "CREATE TABLE orders (id text PRIMARY KEY, cents bigint CHECK (cents >= 0), seen text, version int)"


@pytest.fixture
def query(postgresql: PostgresqlServer, database: str) -> Query:
    """Runs statements in the test's database."""
    return lambda statement, *parameters: postgresql.execute(database, statement, parameters)


async def test_columns_get_what_their_expressions_name(database: str, query: Query) -> None:
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
async def test_a_key_that_comes_again_adds_no_row(database: str, query: Query, mode: str) -> None:
    query(ORDERS)
    async with started(database, mode=mode, key=["id"]) as handler:
        batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 2}, {"id": "1", "cents": 3})
        for _ in range(3):
            await handler.handle(batch)

    newest = 3 if mode == "upsert" else 1
    assert query("SELECT id, cents FROM orders ORDER BY id") == [("1", newest), ("2", 2)]


async def test_without_a_key_a_message_that_comes_again_is_written_again(database: str, query: Query) -> None:
    """So the test above can fail."""
    query("CREATE TABLE orders (id text, cents bigint)")
    for mode in ("insert", "copy"):
        async with started(database, mode=mode) as handler:
            await handler.handle(orders({"id": "1", "cents": 1}))

    assert query("SELECT count(*) FROM orders") == [(2,)]


async def test_a_row_is_not_replaced_by_an_older_version(database: str, query: Query) -> None:
    query(ORDERS)
    columns = COLUMNS | {"version": "$.v"}
    async with started(database, mode="upsert", key=["id"], columns=columns, version="version") as handler:
        await handler.handle(orders({"id": "1", "cents": 2, "v": 2}, {"id": "1", "cents": 1, "v": 1}))
        await handler.handle(orders({"id": "1", "cents": 0}))

    assert query("SELECT cents, version FROM orders") == [(2, 2)]


@pytest.mark.parametrize("mode", ["insert", "copy", "upsert"])
async def test_what_can_never_be_a_row_is_a_dead_letter_and_the_rest_is_written(
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
            b'{"id": ' + b"[" * 900 + b"]" * 900 + b"}",
            {"id": "9", "cents": 9},
        )
        await handler.handle(batch)

    assert query("SELECT id FROM orders ORDER BY id") == [("1",), ("9",)]
    reasons = decided(batch)
    assert {place: outcome for place, (outcome, _) in reasons.items()} == dict.fromkeys(range(1, 9), "dead_letter")
    assert "not JSON" in reasons[1][1]
    assert reasons[2][1] == "InvalidTextRepresentation 22P02: invalid input syntax for type bigint: …"
    assert "check constraint" in reasons[3][1]
    assert "not-null constraint" in reasons[5][1]
    assert "not UTF-8" in reasons[6][1]
    assert "index row" in reasons[7][1]
    assert "too deeply" in reasons[8][1]


async def test_psycopgs_warnings_of_rows_are_not_logged(
    database: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """They quote the row; those of its pool are about connections."""
    query(ORDERS)
    async with started(database):
        logging.getLogger("psycopg").warning("error ignored terminating: Failing row contains (secret).")
        logging.getLogger("psycopg").error("psycopg failed")
        logging.getLogger("psycopg.pool").warning("error connecting")

    assert [record.message for record in caplog.records] == ["psycopg failed", "error connecting"]


@pytest.mark.parametrize("mode", ["insert", "copy", "upsert"])
async def test_a_text_that_is_too_long_for_its_column_is_not_cut(database: str, query: Query, mode: str) -> None:
    query("CREATE DOMAIN word AS varchar(3)")
    query("CREATE TABLE lengths (id int PRIMARY KEY, a varchar(3), b char(3), c bit(3), d varchar(3)[], e word)")
    names = ("a", "b", "c", "d", "e")
    fits = {"a": "abc", "b": "abc", "c": "101", "d": ["abc"], "e": "abc"}
    longer = {"a": "abcd", "b": "abcd", "c": "1011", "d": ["abcd"], "e": "abcd"}
    columns = {name: f"$.{name}" for name in ("id", *names)}
    async with started(database, table="lengths", columns=columns, mode=mode, key=["id"]) as handler:
        batch = orders({"id": 0, **fits}, *({"id": 1, **fits, name: longer[name]} for name in names))
        await handler.handle(batch)

    assert query("SELECT * FROM lengths") == [(0, "abc", "abc", "101", ["abc"], "abc")]
    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == dict.fromkeys(
        range(1, 6), "dead_letter"
    )


@pytest.mark.parametrize("mode", ["insert", "copy"])
@pytest.mark.parametrize("errcode", ["", " USING ERRCODE = 'MY001'", " USING ERRCODE = 'insufficient_privilege'"])
async def test_what_a_trigger_refuses_is_a_dead_letter_and_the_rest_is_written(
    database: str, query: Query, mode: str, errcode: str
) -> None:
    query(ORDERS)
    refusal = f"BEGIN IF NEW.cents > 100 THEN RAISE EXCEPTION 'too dear'{errcode}; END IF; RETURN NEW; END"
    query(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {refusal} $$")
    query("CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()")
    batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 101}, {"id": "3", "cents": 3})
    async with started(database, mode=mode) as handler:
        await handler.handle(batch)

    assert query("SELECT id FROM orders ORDER BY id") == [("1",), ("3",)]
    [(place, (outcome, reason))] = decided(batch).items()
    assert (place, outcome) == (1, "dead_letter")
    assert "too dear" in reason


async def test_a_trigger_that_asks_for_another_attempt_gets_it(database: str, query: Query) -> None:
    """And no message is given up."""
    query(ORDERS)
    refusal = "BEGIN RAISE EXCEPTION 'not yet' USING ERRCODE = 'lock_not_available'; END"
    query(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {refusal} $$")
    query("CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()")
    batch = orders({"id": "1", "cents": 1})
    async with started(database, retry_for="0s") as handler:
        with pytest.raises(Exception, match="not yet"):
            await handler.handle(batch)

    assert decided(batch) == {}


async def test_a_time_that_no_calendar_has_is_a_dead_letter(database: str, query: Query) -> None:
    query("CREATE TABLE orders (id text, born timestamptz)")
    batch = make_batch(testing.make_message(b"x", born_timestamp=2**62))
    async with started(database, columns={"id": "msg_id", "born": "born_timestamp"}) as handler:
        await handler.handle(batch)

    assert decided(batch)[0][0] == "dead_letter"


@pytest.mark.parametrize(("on_invalid", "outcome"), [("retry", "retry"), ("skip", "ack")])
async def test_on_invalid_says_what_becomes_of_it(database: str, query: Query, on_invalid: str, outcome: str) -> None:
    query(ORDERS)
    batch = orders(b"{", {"id": "1", "cents": -1}, {"id": "2", "cents": 2})
    async with started(database, on_invalid=on_invalid) as handler:
        await handler.handle(batch)

    outcomes = {place: what for place, (what, _) in decided(batch).items()}
    assert outcomes.pop(2, "ack") == "ack"
    assert outcomes == {0: outcome, 1: outcome}


async def test_a_row_that_refers_to_one_that_is_not_there_yet_is_retried(database: str, query: Query) -> None:
    query("CREATE TABLE customers (id text PRIMARY KEY)")
    query("CREATE TABLE orders (id text PRIMARY KEY, cents text REFERENCES customers)")
    batch = orders({"id": "1", "cents": "ada"})
    async with started(database) as handler:
        await handler.handle(batch)

    assert decided(batch)[0][0] == "retry"


async def test_batches_that_write_the_same_keys_in_another_order_do_not_hinder_each_other(
    database: str, query: Query
) -> None:
    query(ORDERS)
    documents = [{"id": str(number), "cents": number} for number in range(200)]
    async with started(database, mode="upsert", key=["id"], retry_for="0s") as handler:
        both = [orders(*documents), orders(*reversed(documents))]
        await asyncio.gather(*(handler.handle(both[number % 2]) for number in range(8)))

    assert query("SELECT count(*) FROM orders") == [(200,)]


@pytest.mark.parametrize("mode", ["insert", "copy"])
async def test_a_database_that_is_killed_and_comes_back_is_waited_for(
    postgresql: PostgresqlServer, database: str, query: Query, mode: str
) -> None:
    query(ORDERS)
    async with started(database, mode=mode, key=["id"], max_connections=3) as handler:
        await asyncio.gather(*(handler.handle(orders({"id": f"before {n}", "cents": n})) for n in range(6)))
        postgresql.kill()
        waiting = [asyncio.create_task(handler.handle(orders({"id": f"during {n}", "cents": n}))) for n in range(6)]
        await asyncio.to_thread(postgresql.start)
        await asyncio.gather(*waiting)

    assert query("SELECT count(*) FROM orders") == [(12,)]


async def test_a_database_that_stays_away_fails_the_batch(
    postgresql: PostgresqlServer, database: str, query: Query
) -> None:
    from psycopg import OperationalError

    async def is_written() -> bool:
        with contextlib.suppress(OperationalError):  # 100 ms may be too short for a line to a database that has begun
            await handler.handle(batch)
            return True
        return False

    query(ORDERS)
    batch = orders({"id": "1", "cents": 1})
    async with started(database, retry_for="100ms") as handler:
        postgresql.kill()
        try:
            with pytest.raises(OperationalError):
                await handler.handle(batch)
        finally:
            postgresql.start()
        assert decided(batch) == {}  # so that it is retried as a whole
        await eventually(is_written, "the batch is written when it comes again")

    assert query("SELECT id FROM orders") == [("1",)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "none"}, "no table none"),
        ({"columns": {"id": "$.id", "colour": "$.c"}}, "no column colour; it has id, cents"),
        ({"key": ["cents"]}, r"CREATE UNIQUE INDEX ON orders \(cents\)"),
    ],
)
async def test_a_table_that_does_not_fit_fails_the_start(
    database: str, query: Query, options: dict[str, object], words: str
) -> None:
    query(ORDERS)
    with pytest.raises(Exception, match=words):
        async with started(database, **options):
            pass
