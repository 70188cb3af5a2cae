"""`sql`: rows that the database refuses are reported without values, and the batch's other rows are written."""

from __future__ import annotations

import pytest

from tests.handlers.messages import decided, orders
from tests.handlers.sql_orders import ORDERS, SQLITE, started
from tests.servers.shops import Shop

pytestmark = pytest.mark.process


@pytest.mark.parametrize("mode", ["insert", "upsert"])
async def test_messages_that_cannot_be_rows_are_dead_lettered_and_others_are_written(shop: Shop, mode: str) -> None:
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


@SQLITE
async def test_on_invalid_decides_about_messages_that_cannot_be_rows(shop: Shop) -> None:
    shop.query(ORDERS)
    for on_invalid, outcome in (("retry", "retry"), ("skip", "ack")):
        shop.query("DELETE FROM orders")
        batch = orders(b"{", {"id": "1", "cents": -1}, {"id": "2", "cents": 2})
        async with started(shop, on_invalid=on_invalid) as handler:
            await handler.handle(batch)

        told = decided(batch)
        assert told.pop(2, ("ack", ""))[0] == "ack"
        assert [(what, bool(reason)) for what, reason in told.values()] == [(outcome, outcome == "retry")] * 2
