"""`postgresql`: rejected rows, triggers, parallel batches, and a database that is unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from rmqd import testing
from tests.handlers.messages import decided, make_batch, orders
from tests.handlers.postgresql_orders import started
from tests.handlers.test_postgresql import ORDERS, Query, check_a_killed_database_is_waited_for, query
from tests.servers.postgresql import PostgresqlServer
from tests.waiting import eventually

pytestmark = pytest.mark.process

__all__ = ["query"]


async def test_a_repeated_message_is_written_again_without_a_key(database: str, query: Query) -> None:
    """Shows that the daily test with a key can fail."""
    query("CREATE TABLE orders (id text, cents bigint)")
    for mode in ("insert", "copy"):
        async with started(database, mode=mode) as handler:
            await handler.handle(orders({"id": "1", "cents": 1}))

    assert query("SELECT count(*) FROM orders") == [(2,)]


async def test_psycopgs_warnings_of_rows_are_not_logged(
    database: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    """They quote the row. Warnings of the connection pool do not, and are logged."""
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
async def test_a_row_refused_by_a_trigger_is_a_dead_letter_and_the_rest_is_written(
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


async def test_a_trigger_can_request_a_retry(database: str, query: Query) -> None:
    query(ORDERS)
    refusal = "BEGIN RAISE EXCEPTION 'not yet' USING ERRCODE = 'lock_not_available'; END"
    query(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {refusal} $$")
    query("CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()")
    batch = orders({"id": "1", "cents": 1})
    async with started(database, retry_for="0s") as handler:
        with pytest.raises(Exception, match="not yet"):
            await handler.handle(batch)

    assert decided(batch) == {}


@pytest.mark.parametrize("mode", ["insert", "copy"])
async def test_a_domain_of_a_domain_is_written_as_its_base_type(database: str, query: Query, mode: str) -> None:
    for name, kind in {"document": "jsonb", "order_note": "document", "code": "varchar(3)", "short": "code"}.items():
        query(f"CREATE DOMAIN {name} AS {kind}")
    query("CREATE TABLE orders (id short, note order_note)")
    batch = orders({"id": "1", "note": "text"}, {"id": "2", "note": [7]}, {"id": "long", "note": 3})
    async with started(database, mode=mode, columns={"id": "$.id", "note": "$.note"}) as handler:
        await handler.handle(batch)

    assert query("SELECT id, note FROM orders ORDER BY id") == [("1", "text"), ("2", [7])]
    assert list(decided(batch)) == [2]


async def test_a_time_outside_the_calendar_is_a_dead_letter(database: str, query: Query) -> None:
    query("CREATE TABLE orders (id text, born timestamptz)")
    batch = make_batch(testing.make_message(b"x", born_timestamp=2**62))
    async with started(database, columns={"id": "msg_id", "born": "born_timestamp"}) as handler:
        await handler.handle(batch)

    assert decided(batch)[0][0] == "dead_letter"


@pytest.mark.parametrize(("on_invalid", "outcome"), [("retry", "retry"), ("skip", "ack")])
async def test_on_invalid_is_applied(database: str, query: Query, on_invalid: str, outcome: str) -> None:
    query(ORDERS)
    batch = orders(b"{", {"id": "1", "cents": -1}, {"id": "2", "cents": 2})
    async with started(database, on_invalid=on_invalid) as handler:
        await handler.handle(batch)

    outcomes = {place: what for place, (what, _) in decided(batch).items()}
    assert outcomes.pop(2, "ack") == "ack"
    assert outcomes == {0: outcome, 1: outcome}


async def test_a_row_that_refers_to_a_missing_row_is_retried(database: str, query: Query) -> None:
    query("CREATE TABLE customers (id text PRIMARY KEY)")
    query("CREATE TABLE orders (id text PRIMARY KEY, cents text REFERENCES customers)")
    batch = orders({"id": "1", "cents": "ada"})
    async with started(database) as handler:
        await handler.handle(batch)

    assert decided(batch)[0][0] == "retry"


async def test_parallel_batches_with_the_same_keys_in_another_order_succeed(database: str, query: Query) -> None:
    query(ORDERS)
    documents = [{"id": str(number), "cents": number} for number in range(200)]
    async with started(database, mode="upsert", key=["id"], retry_for="0s") as handler:
        both = [orders(*documents), orders(*reversed(documents))]
        await asyncio.gather(*(handler.handle(both[number % 2]) for number in range(8)))

    assert query("SELECT count(*) FROM orders") == [(200,)]


async def test_a_batch_fails_if_the_database_stays_unavailable(
    postgresql: PostgresqlServer, database: str, query: Query
) -> None:
    from psycopg import OperationalError

    async def is_written() -> bool:
        with contextlib.suppress(OperationalError):  # 100 ms may be too short to connect to a new process
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
        await eventually(is_written, "the batch is written")

    assert query("SELECT id FROM orders") == [("1",)]


async def test_copy_waits_until_a_killed_database_is_restarted(postgresql: PostgresqlServer, database: str) -> None:
    await check_a_killed_database_is_waited_for(postgresql, database, "copy")
