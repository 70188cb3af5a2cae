"""`sql`: the daily tests on MariaDB."""

from __future__ import annotations

import pytest

from tests.handlers.messages import decided, meant, orders
from tests.handlers.sql_orders import ORDERS, STATEMENT, started
from tests.handlers.test_sql import (
    in_group,
    test_a_repeated_key_adds_no_row,
    test_a_row_is_not_replaced_by_an_older_version,
    test_columns_get_the_values_of_their_expressions,
)
from tests.handlers.test_sql_refused import test_messages_that_cannot_be_rows_are_dead_lettered_and_others_are_written
from tests.nightly.handlers.test_sql import (
    test_a_message_alone_that_was_handled_is_told_so_that_it_is_counted,
    test_what_is_refused_leaves_no_mark,
    test_without_a_key_a_message_that_comes_again_is_written_again_unless_it_is_marked,
)
from tests.nightly.handlers.test_sql_refused import (
    test_a_key_that_is_there_is_told_without_its_value,
    test_a_table_that_is_gone_fails_the_batch,
    test_what_a_trigger_refuses_is_a_dead_letter_and_the_rest_is_written,
    test_what_does_not_fit_the_database_fails_the_start,
)
from tests.servers.mariadb import MariadbServer
from tests.servers.shops import Shop, on_mariadb

pytestmark = pytest.mark.process

__all__ = [
    "in_group",
    "test_a_key_that_is_there_is_told_without_its_value",
    "test_a_message_alone_that_was_handled_is_told_so_that_it_is_counted",
    "test_a_repeated_key_adds_no_row",
    "test_a_row_is_not_replaced_by_an_older_version",
    "test_a_table_that_is_gone_fails_the_batch",
    "test_columns_get_the_values_of_their_expressions",
    "test_messages_that_cannot_be_rows_are_dead_lettered_and_others_are_written",
    "test_what_a_trigger_refuses_is_a_dead_letter_and_the_rest_is_written",
    "test_what_does_not_fit_the_database_fails_the_start",
    "test_what_is_refused_leaves_no_mark",
    "test_without_a_key_a_message_that_comes_again_is_written_again_unless_it_is_marked",
]


@pytest.fixture
def shop(mariadb: MariadbServer) -> Shop:
    """The database of each test."""
    return on_mariadb(mariadb)


async def test_numbers_and_booleans_fit_bits(shop: Shop) -> None:
    shop.query("CREATE TABLE orders (id bit(8), cents bit(1))")
    async with started(shop) as handler:
        await handler.handle(orders({"id": 1, "cents": True}, {"id": "200", "cents": 0}))

    assert shop.query("SELECT id + 0, cents + 0 FROM orders ORDER BY id") == [(1, 1), (200, 0)]


@pytest.mark.parametrize(("options", "rows"), [({}, 3), (STATEMENT, 2)], ids=["table", "statement"])
async def test_no_message_is_blamed_for_a_changed_table(shop: Shop, options: dict[str, object], rows: int) -> None:
    """The statement still adds 1 to the column, which is a text now."""
    shop.query(ORDERS)
    batch = orders({"id": "1", "cents": 1}, {"id": "2", "cents": 2})
    async with started(shop, **options, retry_for="0s") as handler:
        shop.query("ALTER TABLE orders ADD COLUMN region varchar(10) NOT NULL")
        with pytest.raises(Exception, match=r"1364.* column region") as raised:
            await handler.handle(batch)
        assert (meant(raised.value), decided(batch)) == ("again", {})
        shop.query("ALTER TABLE orders ALTER COLUMN region SET DEFAULT 'eu', MODIFY COLUMN cents varchar(40)")
        await handler.handle(batch)
        refused = orders({"id": "3", "cents": "dear"}, {"cents": 4})
        await handler.handle(refused)

    assert [outcome for outcome, _ in decided(refused).values()][-1] == "dead_letter"
    assert shop.query("SELECT count(*) FROM orders") == [(rows,)]
