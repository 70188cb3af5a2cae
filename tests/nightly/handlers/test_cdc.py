"""`cdc`: numbers, times and the order of changes."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

from rmqd_handlers.cdc.pipeline import ChangeDecoder, Options
from tests.handlers.test_cdc import AT, DEBEZIUM, SCHEMA, TIME_MS, canal, changes, debezium
from tests.nightly.handlers.test_cdc_reasons import reason


def test_a_change_that_waited_for_another_is_later() -> None:
    """Its time is the start of its statement, before the other change. Times count only with `order: time`."""

    def place(offset: int, es: int, **options: Any) -> list[int]:
        made = ChangeDecoder(Options.model_validate({
            "format": "canal", "tables": ["shop.orders"], "schema": SCHEMA, "keys": ["id"], **options,
        }))  # fmt: skip
        ((_, order),) = made.changes(json.dumps(canal("UPDATE", {"id": "7"}, es=es)).encode(), offset)
        return order

    paid, cancelled = (1, TIME_MS + 4000), (2, TIME_MS + 2000)
    assert place(*cancelled) > place(*paid)
    assert place(*cancelled, order="time") < place(*paid, order="time")


def test_debeziums_values_without_schema() -> None:
    after = {"id": 7, "amount": 12.5, "at": TIME_MS, "name": {"a": [1]}}
    ((row, _, _),) = changes(debezium("c", None, after), time_unit="milliseconds", **DEBEZIUM)
    assert (row["amount"], row["at"], row["name"]) == (Decimal("12.50"), AT, '{"a": [1]}')
    ((row, _, _),) = changes(
        debezium("c", None, {"id": 7, "at": "2026-03-01T11:00:00+01:00", "amount": "1"}), **DEBEZIUM
    )
    assert (row["amount"], row["at"]) == (Decimal("1.00"), AT)


def test_numbers_in_a_text_column_keep_their_notation() -> None:
    """Alone and nested: exact, and without quotes."""

    def name(json_text: str) -> Any:
        body = json.dumps(debezium("c", None, {"id": 7, "name": None})).replace('"name": null', f'"name": {json_text}')
        ((row, _, _),) = changes(body.encode(), **DEBEZIUM)
        return row["name"]

    assert name("12.5000") == "12.5000"
    assert name("7") == "7"
    nested = '{"a": [1.10, 0.12345678901234567890, true, null, "ä\\""]}'
    assert name(nested) == nested


def test_a_decimal_has_as_many_digits_as_its_column() -> None:
    """Python's default precision has 28 digits."""
    digits = "12345678901234567890.123456789012345678"
    ((row, _, _),) = changes(canal("INSERT", {"id": "1", "amount": digits}), schema="id bigint, amount decimal(38,18)")
    assert row["amount"] == Decimal(digits)


def test_a_decimal_with_more_digits_than_any_column_is_not_rounded() -> None:
    fields = [
        {"field": "id", "type": "int64"},
        {"field": "amount", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
         "parameters": {"scale": "4"}},
    ]  # fmt: skip
    schema = {
        "type": "struct",
        "fields": [{"field": side, "type": "struct", "fields": fields} for side in ("before", "after")],
    }
    amount = base64.b64encode((10**39 + 1234).to_bytes(17, "big", signed=True)).decode()
    message = {"schema": schema, "payload": debezium("c", None, {"id": 7, "amount": amount})}
    schema_of_table = "id bigint, amount decimal(38,2)"
    assert "has more digits than decimal(38,2)" in reason(message, schema=schema_of_table, **DEBEZIUM)


def test_whole_numbers_may_have_a_decimal_point() -> None:
    body = json.dumps(debezium("c", None, {"id": None})).replace('"id": null', '"id": 9.2e18')
    ((row, _, _),) = changes(body.encode(), **DEBEZIUM)
    assert row["id"] == 9_200_000_000_000_000_000


def test_the_order_may_be_a_position_in_the_sources_log_or_the_queue() -> None:
    """A later log file of MySQL follows an earlier one, and the rows of an event follow each other."""

    def place(**source: Any) -> list[int]:
        return changes(debezium("c", None, {"id": 1}, **source), order="position", **DEBEZIUM)[0][2]

    assert place(lsn=24023128) == [24023128, 1, 7]
    assert place(scn="2122184") == [2122184, 1, 7]
    files = [place(file=file, pos=pos, row=row) for file, pos, row in
             (("mysql-bin.000009", 2**32, 0), ("mysql-bin.000009", 2**32, 1), ("mysql-bin.000010", 4, 0))]  # fmt: skip
    assert files == sorted(files)
    assert files[0] != files[1]
    assert "source has no position in a log" in reason(debezium("c", None, {"id": 1}), order="position", **DEBEZIUM)
    assert changes(canal("INSERT", {"id": "1"}), order="offset")[0][2] == [7, 1]


def test_a_part_of_a_key_may_change() -> None:
    message = canal("UPDATE", {"id": "3", "name": "b"}, old=[{"name": "a"}])
    assert [(row["id"], row["name"], gone) for row, gone, _ in changes(message, keys=["id", "name"])] == [
        (3, "a", True),
        (3, "b", False),
    ]


def test_schema_changes_produce_no_rows() -> None:
    for kind in ("CREATE", "ALTER", "CINDEX", "DINDEX", "QUERY"):
        assert changes(canal(kind, isDdl=True, sql="ALTER TABLE orders ...")) == [], kind


def test_tables_are_chosen_by_patterns() -> None:
    for table, wanted in (("orders_03", 1), ("refunds", 0)):
        assert len(changes(canal("INSERT", {"id": "1"}, table=table), tables=["shop.orders_*"])) == wanted
    assert changes(canal("TRUNCATE", isDdl=True, table="refunds")) == []
    assert len(changes(debezium("c", None, {"id": 1}, schema=None), **{**DEBEZIUM, "tables": ["shop.orders"]})) == 1
