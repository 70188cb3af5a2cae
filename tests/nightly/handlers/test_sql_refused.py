"""`sql`: refused rows, also in cases that only some databases have, and unusable settings."""

from __future__ import annotations

import pytest

from rmqd_handlers.faults import ErrorCause, cause_of
from rmqd_handlers.postgresql import PostgreSql
from tests.handlers.messages import decided, orders
from tests.handlers.sql_orders import COLUMNS, MARIADB, ORDERS, POSTGRESQL, SERVERS, STATEMENT, started
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
async def test_a_row_refused_by_a_deferred_trigger_is_a_dead_letter(shop: Shop, plugin: str) -> None:
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
async def test_an_error_that_may_not_be_the_rows_fault_fails_only_that_row(shop: Shop) -> None:
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
async def test_a_row_that_refers_to_a_missing_row_is_retried(shop: Shop) -> None:
    shop.query("CREATE TABLE customers (id varchar(40) PRIMARY KEY)")
    shop.query("CREATE TABLE orders (id varchar(40), cents varchar(40), FOREIGN KEY (cents) REFERENCES customers (id))")
    batch = orders({"id": "1", "cents": "ada"}, {"id": "2"})
    async with started(shop) as handler:
        await handler.handle(batch)

    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {0: "retry", 1: "ack"}
    assert shop.query("SELECT id FROM orders") == [("2",)]


@MARIADB
async def test_a_second_unique_index_is_refused_on_mariadb(shop: Shop) -> None:
    shop.query("CREATE TABLE orders (n int AUTO_INCREMENT PRIMARY KEY, id varchar(40) UNIQUE, cents bigint)")
    async with started(shop, key=["id"]) as handler:  # no message has the column n
        await handler.handle(orders({"id": "1", "cents": 1}))
    shop.query("CREATE UNIQUE INDEX another ON orders (cents)")
    with pytest.raises(Exception, match="another unique index, of cents"):
        async with started(shop, key=["id"]):
            pass


async def test_a_key_that_is_there_is_told_without_its_value(shop: Shop) -> None:
    shop.query(ORDERS)
    async with started(shop) as handler:
        await handler.handle(orders({"id": "geheim", "cents": 1}))
        batch = orders({"id": "geheim", "cents": 1}, {"id": "2", "cents": 2})
        await handler.handle(batch)

    [(place, (outcome, reason))] = decided(batch).items()
    assert (place, outcome) == (0, "dead_letter")
    assert "geheim" not in reason
    assert "Error" in reason or "Violation" in reason
    assert shop.query("SELECT count(*) FROM orders") == [(2,)]


async def test_what_a_trigger_refuses_is_a_dead_letter_and_the_rest_is_written(shop: Shop) -> None:
    shop.query(ORDERS)
    for statement in TRIGGERS[shop.dialect]:
        shop.query(statement.replace(":", r"\:"))
    batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 98765}, {"id": "3", "cents": 3})
    async with started(shop) as handler:
        await handler.handle(batch)

    assert shop.query("SELECT id FROM orders ORDER BY id") == [("1",), ("3",)]
    [(place, (outcome, reason))] = decided(batch).items()
    assert (place, outcome) == (1, "dead_letter")
    assert "too dear" in reason
    assert "98765" not in reason


async def test_a_table_that_is_gone_fails_the_batch(shop: Shop) -> None:
    shop.query(ORDERS)
    async with started(shop) as handler:
        shop.query("DROP TABLE orders")
        batch = orders({"id": "geheim", "cents": 1})
        with pytest.raises(Exception, match=r"(?i)no such table|doesn|does not exist|UndefinedTable") as raised:
            await handler.handle(batch)

    assert decided(batch) == {}
    assert "geheim" not in str(raised.value)


async def test_what_does_not_fit_the_database_fails_the_start(shop: Shop) -> None:
    shop.query(ORDERS)
    cases: list[tuple[dict[str, object], str]] = [
        ({"table": "none"}, "no table none"),
        ({"columns": {"id": "$.id", "colour": "$.c"}}, "no column colour; it has id, cents"),
        ({"key": ["cents"]}, r"CREATE UNIQUE INDEX orders_cents ON orders \(cents\)"),
        ({**STATEMENT, "parameters": {"id": "$.id"}}, "names :cents, which are missing in parameters"),
        ({**STATEMENT, "parameters": {**COLUMNS, "more": "$"}}, "parameters has more, which"),
    ]

    for options, words in cases:
        with pytest.raises(Exception, match=words):
            async with started(shop, **options):
                pass


async def test_an_unusable_url_fails_the_start_and_is_not_shown() -> None:
    cases: list[tuple[str, str]] = [
        ("geheim", "url is not a valid database URL; expected DIALECT"),
        ("nosuch://geheim@db/shop", "nosuch"),
        ("mysql+mysqldb://geheim@db/shop", "driver mysqldb is not installed"),
        ("sqlite+aiosqlite:////tmp/geheim", "aiosqlite is an asynchronous driver; expected"),
        ("sqlite://", "ends with its connection"),
        ("postgresql+psycopg://rmqd:geheim@127.0.0.1:1/shop", "connection"),
    ]

    for url, words in cases:
        with pytest.raises(Exception, match=words) as raised:
            async with started(Shop("", url, None)):
                pass
        assert "geheim" not in str(raised.value)


@pytest.mark.parametrize("number", [1300, 1365, 1416, 3141, 3150, 3151, 3155, 3156, 3157])
def test_mysqls_error_number_decides_that_a_value_is_invalid(number: int) -> None:
    class OperationalError(Exception):
        """The class that PyMySQL raises for unknown numbers."""

    assert cause_of(OperationalError(number, "Invalid JSON value"), ("id",)) is ErrorCause.MESSAGE
    assert cause_of(OperationalError(1467, "Failed to read auto-increment value"), ("id",)) is ErrorCause.COUNTERPART
