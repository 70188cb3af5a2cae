"""`sql`: refused rows, in the cases that only one database or two of them have."""

from __future__ import annotations

import pytest

from rmqd_handlers.postgresql import PostgreSql
from tests.handlers.messages import decided, orders
from tests.handlers.sql_orders import COLUMNS, MARIADB, ORDERS, POSTGRESQL, SERVERS, started
from tests.handlers.test_sql_refused import TRIGGERS
from tests.servers.shops import Shop

pytestmark = pytest.mark.process

DEFERRED = (
    TRIGGERS["postgresql"][0].replace("RETURN NEW", "RETURN NULL"),
    "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION refuse()",
)


@POSTGRESQL
@pytest.mark.parametrize("plugin", ["sql", "postgresql"])
async def test_what_a_deferred_trigger_refuses_is_a_dead_letter_and_the_rest_is_written(
    shop: Shop, plugin: str
) -> None:
    shop.query(ORDERS)
    for statement in DEFERRED:
        shop.query(statement.replace(":", r"\:"))
    batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 98765}, {"id": "3", "cents": 3})
    if plugin == "sql":
        async with started(shop) as handler:
            await handler.handle(batch)
    else:
        options = {"url": shop.url.replace("+psycopg", ""), "table": "orders", "columns": COLUMNS}
        other = PostgreSql(PostgreSql.Options.model_validate(options))
        await other.start()
        await other.handle(batch)
        await other.stop()

    assert shop.query("SELECT id FROM orders ORDER BY id") == [("1",), ("3",)]
    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {1: "dead_letter"}


@POSTGRESQL
async def test_an_error_that_may_not_be_the_rows_fault_fails_that_row_alone(shop: Shop) -> None:
    shop.query(ORDERS)
    shop.query(
        "CREATE FUNCTION call() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.cents > 100 THEN "
        "PERFORM no_such(NEW.id); END IF; RETURN NEW; END $$"
    )
    shop.query("CREATE TRIGGER call BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION call()")
    batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 101}, {"id": "3", "cents": 3})
    async with started(shop) as handler:
        with pytest.raises(Exception, match="UndefinedFunction 42883: function no_such"):
            await handler.handle(batch)

    assert decided(batch) == {0: ("ack", ""), 2: ("ack", "")}
    assert shop.query("SELECT id FROM orders ORDER BY id") == [("1",), ("3",)]


@SERVERS
async def test_a_row_that_refers_to_one_that_is_not_there_yet_is_retried(shop: Shop) -> None:
    shop.query("CREATE TABLE customers (id varchar(40) PRIMARY KEY)")
    shop.query("CREATE TABLE orders (id varchar(40), cents varchar(40), FOREIGN KEY (cents) REFERENCES customers (id))")
    batch = orders({"id": "1", "cents": "ada"}, {"id": "2"})
    async with started(shop) as handler:
        await handler.handle(batch)

    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {0: "retry", 1: "ack"}
    assert shop.query("SELECT id FROM orders") == [("2",)]


@MARIADB
async def test_a_second_unique_key_is_refused_where_the_database_does_not_tell_them_apart(shop: Shop) -> None:
    shop.query("CREATE TABLE orders (n int AUTO_INCREMENT PRIMARY KEY, id varchar(40) UNIQUE, cents bigint)")
    async with started(shop, key=["id"]) as handler:  # no message has the column n
        await handler.handle(orders({"id": "1", "cents": 1}))
    shop.query("CREATE UNIQUE INDEX another ON orders (cents)")
    with pytest.raises(Exception, match="another unique index, of cents"):
        async with started(shop, key=["id"]):
            pass
