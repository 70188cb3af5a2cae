"""`postgresql` and `sql`: the table or the session changes while the group runs, and no message is blamed."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from rmqd_handlers.postgresql import PostgreSql
from rmqd_handlers.sql import Sql
from tests.handlers.messages import decided, meant, orders
from tests.handlers.postgresql_orders import started as postgresql_started
from tests.handlers.sql_orders import ORDERS, POSTGRESQL, STATEMENT
from tests.handlers.sql_orders import started as sql_started
from tests.servers.shops import Shop

pytestmark = pytest.mark.process

PLUGINS = pytest.mark.parametrize("plugin", ["sql", "postgresql"])


def started(plugin: str, shop: Shop, **options: object) -> AbstractAsyncContextManager[Sql | PostgreSql]:
    """The handler with this name, started for the block."""
    if plugin == "sql":
        return sql_started(shop, **options)
    return postgresql_started(shop.url.replace("+psycopg", ""), **options)


@POSTGRESQL
@PLUGINS
async def test_values_are_written_by_the_columns_changed_type(shop: Shop, plugin: str) -> None:
    shop.query("CREATE TABLE orders (id bigint, cents bigint)")
    batch = orders({"id": "A-1", "cents": 1}, {"id": "2", "cents": 2}, {"id": "A-3", "cents": "dear"}, b"no JSON")
    async with started(plugin, shop, retry_for="0s") as handler:
        shop.query("ALTER TABLE orders ALTER COLUMN id TYPE text")
        await handler.handle(batch)

    assert shop.query("SELECT id FROM orders ORDER BY id") == [("2",), ("A-1",)]
    assert {place: outcome for place, (outcome, _) in decided(batch).items() if outcome != "ack"} == dict.fromkeys(
        (2, 3), "dead_letter"
    )


@POSTGRESQL
@pytest.mark.parametrize(
    ("plugin", "options"), [("sql", {}), ("sql", STATEMENT), ("postgresql", {})], ids=["sql", "statement", "postgresql"]
)
async def test_no_message_is_blamed_for_an_added_column(shop: Shop, plugin: str, options: dict[str, object]) -> None:
    shop.query(ORDERS)
    batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 2})
    async with started(plugin, shop, **options) as handler:
        shop.query("ALTER TABLE orders ADD COLUMN region text NOT NULL")
        with pytest.raises(Exception, match="region") as raised:
            await handler.handle(batch)
        assert (meant(raised.value), decided(batch)) == ("again", {})
        shop.query("ALTER TABLE orders ALTER COLUMN region SET DEFAULT 'eu'")
        await handler.handle(batch)

    assert shop.query("SELECT count(*) FROM orders") == [(2,)]


@POSTGRESQL
@pytest.mark.parametrize(
    "change",
    [
        "ADD COLUMN region text, ADD CONSTRAINT known CHECK (region IS NOT NULL)",
        "ADD COLUMN region text DEFAULT 'eu' CONSTRAINT known UNIQUE",
        "ADD COLUMN known smallint DEFAULT nextval('numbers')",
        "ADD COLUMN known integer DEFAULT 2147483647 + nextval('numbers')",
    ],
)
async def test_no_message_is_blamed_for_a_constraint_on_unwritten_columns(shop: Shop, change: str) -> None:
    shop.query("CREATE TABLE orders (id text PRIMARY KEY, cents bigint)")
    shop.query("CREATE SEQUENCE numbers MAXVALUE 2")
    batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 2}, {"id": "3", "cents": 3})
    async with started("postgresql", shop, retry_for="0s") as handler:
        shop.query(f"ALTER TABLE orders {change}")
        with pytest.raises(Exception, match=r"known|numbers|sequence|out of range") as raised:
            await handler.handle(batch)
        assert (meant(raised.value), decided(batch), shop.query("SELECT * FROM orders")) == ("again", {}, [])


@POSTGRESQL
async def test_a_constraint_of_a_partition_is_judged_by_its_columns(shop: Shop) -> None:
    shop.query(
        "CREATE TABLE orders (id text, cents bigint, part int DEFAULT 0, UNIQUE (part)) PARTITION BY LIST (part)"
    )
    shop.query("CREATE TABLE first PARTITION OF orders (CHECK (cents >= 0)) DEFAULT")
    dear, free = orders({"id": "1", "cents": -1}), orders({"id": "2", "cents": 2}, {"id": "3", "cents": 3})
    async with started("postgresql", shop, retry_for="0s") as handler:
        await handler.handle(dear)
        assert [outcome for outcome, _ in decided(dear).values()] == ["dead_letter"]
        with pytest.raises(Exception, match="first_part_key") as raised:
            await handler.handle(free)
        assert (meant(raised.value), decided(free)) == ("again", {})


@POSTGRESQL
async def test_a_message_that_a_computed_column_refuses_is_a_dead_letter(shop: Shop) -> None:
    """Even if the column also refuses the defaults."""
    computed = "rate bigint GENERATED ALWAYS AS (cents / id) STORED"
    shop.query(f"CREATE TABLE orders (id bigint DEFAULT 0, cents bigint DEFAULT 0, {computed})")
    batch = orders({"id": 1, "cents": 6}, {"id": 0, "cents": 6}, {"id": 3, "cents": 6})
    async with started("postgresql", shop, retry_for="0s") as handler:
        await handler.handle(batch)
    assert decided(batch)[1][0] == "dead_letter"
    assert shop.query("SELECT rate FROM orders ORDER BY id") == [(6,), (2,)]


@POSTGRESQL
@pytest.mark.parametrize("mode", ["insert", "copy"])
async def test_a_value_refused_with_an_unusual_code_is_a_dead_letter(shop: Shop, mode: str) -> None:
    """Such as 42601, the code of a syntax error, and XX000 of an extension. COPY also writes GENERATED ALWAYS."""
    always = "GENERATED ALWAYS AS IDENTITY" if mode == "copy" else ""
    shop.query(f"CREATE EXTENSION hstore; CREATE TABLE orders (id int {always}, words tsquery, pairs hstore)")
    columns = {"id": "$.id", "words": "$.words", "pairs": "$.pairs"}
    batch = orders({"id": 1, "words": "a & b"}, {"id": 2, "words": "a b"}, {"id": 3, "pairs": "a=>"})
    async with started("postgresql", shop, mode=mode, columns=columns, retry_for="0s") as handler:
        await handler.handle(batch)
    assert [place for place, (outcome, _) in decided(batch).items() if outcome == "dead_letter"] == [1, 2]
    assert shop.query("SELECT id, words::text FROM orders") == [(1, "'a' & 'b'")]


@POSTGRESQL
@pytest.mark.parametrize(
    "computed",
    [
        "ALTER TABLE orders ADD COLUMN small text GENERATED ALWAYS AS (lower(id)) STORED CONSTRAINT known UNIQUE",
        "CREATE UNIQUE INDEX known ON orders (lower(id), region)",
        "ALTER TABLE orders ADD COLUMN small text CONSTRAINT known UNIQUE; "
        "CREATE FUNCTION smaller() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.small = lower(NEW.id); RETURN NEW; END $$; "
        "CREATE TRIGGER smaller BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION smaller()",
    ],
)
async def test_a_constraint_on_computed_values_refuses_the_message(shop: Shop, computed: str) -> None:
    shop.query("CREATE TABLE orders (id text PRIMARY KEY, cents bigint, region text DEFAULT 'eu')")
    shop.query(computed)
    batch = orders({"id": "a", "cents": 1}, {"id": "A", "cents": 2}, {"id": "b", "cents": 3})
    async with started("postgresql", shop, retry_for="0s") as handler:
        await handler.handle(batch)
    assert ("known" in str(decided(batch)), shop.query("SELECT id FROM orders")) == (True, [("a",), ("b",)])


@POSTGRESQL
@PLUGINS
async def test_no_batch_fails_if_the_session_loses_prepared_statements(shop: Shop, plugin: str) -> None:
    """As with PgBouncer before 1.21: the session does not know a statement that the driver has prepared."""
    shop.query(ORDERS)
    shop.query(
        "CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN DEALLOCATE ALL; RETURN NULL; END $$"
    )
    shop.query("CREATE TRIGGER forget AFTER INSERT ON orders FOR EACH STATEMENT EXECUTE FUNCTION forget()")
    async with started(plugin, shop, max_connections=1) as handler:
        for number in range(8):
            batch = orders({"id": f"{number}", "cents": 1})
            await handler.handle(batch)
            assert decided(batch) == {}

    assert shop.query("SELECT count(*) FROM orders") == [(8,)]
