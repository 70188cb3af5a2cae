"""`sql`: only committed messages are acknowledged, even if the database itself rolls back a transaction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmqd.handler_api.once.once_group import once_for_group
from rmqd.wire.messages.message import once_in_group
from tests.handlers.messages import decided, make_batch, make_message, orders
from tests.handlers.sql_orders import LOOSE, SQLITE, started
from tests.servers.shops import Shop

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def in_group() -> Iterator[None]:
    """Run each test in the context of a handler of the group `shop`."""
    token = once_in_group.set(once_for_group("shop"))
    yield
    once_in_group.reset(token)


@SQLITE
@pytest.mark.parametrize("once", [False, True])
async def test_a_row_that_rolls_back_the_transaction_loses_no_other_row(shop: Shop, once: bool) -> None:
    shop.query(LOOSE)
    shop.query(
        "CREATE TRIGGER refuse BEFORE INSERT ON orders WHEN NEW.cents > 100 "
        "BEGIN SELECT RAISE(ROLLBACK, 'too dear'); END"
    )
    batch = orders(*({"id": str(number), "cents": 101 if number in (2, 4) else 1} for number in range(6)))
    async with started(shop, once=once) as handler:
        await handler.handle(
            make_batch(make_message(b'{"id": "9", "cents": 1}', queue_offset=9))
        )  # creates the table of records
        await handler.handle(batch)

    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {2: "dead_letter", 4: "dead_letter"}
    assert "too dear" in decided(batch)[2][1]
    assert shop.query("SELECT id FROM orders ORDER BY id") == [("0",), ("1",), ("3",), ("5",), ("9",)]
