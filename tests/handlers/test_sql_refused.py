"""`sql`: what a database refuses is told without values, and takes nothing along; what does not fit fails the start."""

from __future__ import annotations

import pytest

from tests.handlers.messages import decided, orders
from tests.handlers.sql_orders import COLUMNS, ORDERS, SQLITE, STATEMENT, started
from tests.servers.shops import Shop

pytestmark = pytest.mark.process


@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_what_can_never_be_a_row_is_a_dead_letter_and_the_rest_is_written(shop: Shop, mode: str) -> None:
    shop.query(ORDERS)
    secret = "geheim"
    async with started(shop, mode=mode, key=["id"]) as handler:
        batch = orders(
            {"id": "1", "cents": 1},
            b"no JSON",
            {"id": "2", "cents": secret},
            {"id": secret, "cents": -987654},
            {"id": "5"} | {"cents": 2**200},
            {"cents": 5},
            b'{"id": "half of a character: \\ud800", "cents": 6}',
            {"id": "7", "cents": [secret]},
            {"id": "9", "cents": 9},
        )
        await handler.handle(batch)

    assert shop.query("SELECT id FROM orders ORDER BY id") == [("1",), ("9",)]
    reasons = decided(batch)
    assert {place: outcome for place, (outcome, _) in reasons.items()} == dict.fromkeys(range(1, 8), "dead_letter")
    assert "not JSON" in reasons[1][1]
    assert reasons[2][1] == "the column cents needs a whole number, but $.cents is another text"
    assert "constraint" in reasons[3][1].lower()
    assert "not UTF-8" in reasons[6][1]
    assert "is a list" in reasons[7][1]
    assert not [reason for _, reason in reasons.values() if secret in reason or "987654" in reason]


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


TRIGGERS = {
    "sqlite": [
        "CREATE TRIGGER refuse BEFORE INSERT ON orders WHEN NEW.cents > 100 BEGIN SELECT RAISE(ABORT, 'too dear'); END"
    ],
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.cents > 100 THEN "
        "RAISE EXCEPTION 'too dear: %', NEW.cents USING ERRCODE = 'MY001'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
    "mariadb": [
        "CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW IF NEW.cents > 100 THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too dear'; END IF"
    ],
}


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


@SQLITE
async def test_on_invalid_says_what_becomes_of_it(shop: Shop) -> None:
    shop.query(ORDERS)
    for on_invalid, outcome in (("retry", "retry"), ("skip", "ack")):
        shop.query("DELETE FROM orders")
        batch = orders(b"{", {"id": "1", "cents": -1}, {"id": "2", "cents": 2})
        async with started(shop, on_invalid=on_invalid) as handler:
            await handler.handle(batch)

        told = decided(batch)
        assert told.pop(2, ("ack", ""))[0] == "ack"
        assert [(what, bool(reason)) for what, reason in told.values()] == [(outcome, outcome == "retry")] * 2


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


async def test_a_url_that_leads_nowhere_fails_the_start_and_is_not_told() -> None:
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
