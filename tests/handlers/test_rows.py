"""The order of rows by key. Keys that a database may consider equal keep the messages' order."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from rmqd_handlers.message_values import ParsedMessage
from rmqd_handlers.rows import make_rows
from tests.handlers.messages import batch_of


def order_of(*keys: Any) -> list[Any]:
    """The keys in the order of the written rows, for messages in the given order."""
    batch = batch_of(*(b"%d" % place for place in range(len(keys))))

    def key(opened: ParsedMessage) -> Any:
        return keys[int(opened.message.body)]

    return [row for _, (row,) in make_rows(batch, {"id": key}, ["id"], "dead_letter")]


def test_keys_that_a_database_may_consider_equal_keep_the_order_of_messages() -> None:
    cases: list[tuple[Any, ...]] = [
        *(("abc", "ABC"), ("straße", "STRASSE"), ("é", "E"), ("\uff21", "a"), ("a ", "a"), ("7.0", "7")),
        *(("1e3", "1000"), (Decimal("7.0"), 7, 7.0), (b"a", b"a")),
    ]
    orders = [case[::step] for case in cases for step in (1, -1)]
    assert [list(map(repr, order_of(*one))) for one in orders] == [list(map(repr, one)) for one in orders]


def test_other_keys_are_sorted_in_any_order_of_messages() -> None:
    cases: list[tuple[Any, ...]] = [
        *(("a", "b"), (2, 10), ("2", "10"), (None, "x"), (10**400, 10**401), ("1e999999", "nan")),
        *((b"a", b"b"), (0.5, 1)),
    ]
    assert [case for case in cases if order_of(*case) != order_of(*reversed(case))] == []
