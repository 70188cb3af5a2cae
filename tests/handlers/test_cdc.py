"""`cdc`: row changes read from messages of Canal and Debezium."""

from __future__ import annotations

import base64
import json
import pickle
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from rmqd_handlers.cdc.pipeline import ChangeDecoder, Options

SCHEMA = "id bigint, name string, amount decimal(12,2), paid boolean, day date, at timestamp, raw binary, share double"
TIME_MS = 1_772_359_200_000  # 2026-03-01T10:00:00Z
AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
GIVEN: dict[str, Any] = {
    "format": "canal", "tables": ["shop.orders"], "schema": SCHEMA, "keys": ["id"], "order": "time",
}  # fmt: skip
BLANK = dict.fromkeys("name amount paid day at raw share".split())
BEFORE_ALL = TIME_MS - (1 << 53)


def decoder(**options: Any) -> ChangeDecoder:
    given = {**GIVEN, **options}
    made: ChangeDecoder = pickle.loads(
        pickle.dumps(ChangeDecoder(Options.model_validate(given)))
    )  # pickled, as for executors
    return made


def changes(message: Any, **options: Any) -> list[tuple[dict[str, Any], bool, list[int]]]:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    made = decoder(**options)
    return [(dict(change.row), change.is_deleted, order) for change, order in made.changes(body, 7)]


def canal(kind: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": kind, "database": "shop", "table": "orders", "es": TIME_MS, "ts": TIME_MS + 321, "id": 3,
        "isDdl": False, "pkNames": ["id"], "sql": "", "mysqlType": {"id": "bigint"}, "sqlType": {"id": -5},
        "data": list(rows) or None, "old": None, **more,
    }  # fmt: skip


def debezium(op: str, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    where = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "ts_ms": TIME_MS}
    return {"op": op, "before": before, "after": after, "source": {**where, **source}, "ts_ms": TIME_MS + 321}


DEBEZIUM: dict[str, Any] = {"format": "debezium", "tables": ["public.orders"]}

NO_COLUMN_HOLDS = {
    "half of a surrogate pair": (canal("INSERT", {"id": "1", "name": "\ud800"}), "name: a text of 1 .* is no"),
    "before the calendar": (
        debezium("c", None, {"id": 1, "at": "0001-01-01T00:00+08:00"}),
        "at: a text of 22 .* is no",
    ),
    "an endless time": (
        canal("INSERT", {"id": "1"}, es=10**30),
        "a number of the position does not fit in 64 bits",
    ),
}


@pytest.mark.parametrize(("message", "reason"), NO_COLUMN_HOLDS.values(), ids=NO_COLUMN_HOLDS)
def test_a_value_that_fits_no_column_makes_the_message_invalid(message: dict[str, Any], reason: str) -> None:
    """Later, Arrow would refuse the whole column, and with it the batch's other messages."""
    options = DEBEZIUM if "op" in message else {}
    assert re.search(reason, decoder(**options).reason(json.dumps(message).encode()))


# --- Canal


def test_canal_texts_are_converted_to_the_types_of_the_columns() -> None:
    row = {
        "id": "7", "name": "käuflich", "amount": "12.50", "paid": "1", "day": "2026-03-01", "share": "0.25",
        "at": "2026-03-01 10:00:00", "raw": "\x00ÿ", "more": "of no column",
    }  # fmt: skip
    made = {
        "id": 7, "name": "käuflich", "amount": Decimal("12.50"), "paid": True, "day": date(2026, 3, 1), "share": 0.25,
        "at": AT, "raw": b"\x00\xff",
    }  # fmt: skip
    assert changes(canal("INSERT", row)) == [(made, False, [TIME_MS, 7, 1])]
    assert changes(canal("INSERT", {"id": "8", "at": "0000-00-00 00:00:00"})) == [
        ({"id": 8, **BLANK}, False, [TIME_MS, 7, 1])
    ]


def test_each_row_of_an_event_has_its_own_order() -> None:
    """If a key changes, the old key is deleted just before. The old key of one row may be the new key of another."""
    message = canal("UPDATE", {"id": "3"}, {"id": "2"}, {"id": "9"}, old=[{"id": "2"}, {"id": "1"}, {"name": "x"}])
    assert [(row["id"], deleted, order) for row, deleted, order in changes(message)] == [
        (2, True, [TIME_MS, 7, 0]),
        (3, False, [TIME_MS, 7, 1]),
        (1, True, [TIME_MS, 7, 2]),
        (2, False, [TIME_MS, 7, 3]),
        (9, False, [TIME_MS, 7, 5]),
    ]
    assert changes(canal("DELETE", {"id": "3", "name": "x"}, {"id": "4", "amount": "no number"})) == [
        ({"id": 3, **BLANK}, True, [TIME_MS, 7, 0]),
        ({"id": 4, **BLANK}, True, [TIME_MS, 7, 2]),
    ]


# --- Debezium


def test_debezium_values_are_decoded_by_their_schema() -> None:
    """Days, microseconds, and decimals that are the bytes of a whole number."""
    columns = [
        {"field": "id", "type": "int64"},
        {"field": "amount", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
         "parameters": {"scale": "2", "connect.decimal.precision": "12"}},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    ]  # fmt: skip
    schema = {
        "type": "struct",
        "fields": [{"field": side, "type": "struct", "fields": columns} for side in ("before", "after")],
    }
    amount = base64.b64encode((-1250).to_bytes(2, "big", signed=True)).decode()
    after = {"id": 7, "amount": amount, "day": 20513, "at": TIME_MS * 1000, "raw": "AP8=", "paid": False, "share": 0.25}
    message = {"schema": schema, "payload": debezium("c", None, after)}
    made = {
        "id": 7, "name": None, "amount": Decimal("-12.50"), "paid": False, "day": date(2026, 3, 1), "at": AT,
        "raw": b"\x00\xff", "share": 0.25,
    }  # fmt: skip
    assert changes(message, **DEBEZIUM) == [(made, False, [TIME_MS, 7, 1])]


def test_each_debezium_operation() -> None:
    """Snapshot rows come before all changes, in their own order. A tombstone changes nothing."""
    found = [
        changes(message, **DEBEZIUM)
        for message in (
            debezium("r", None, {"id": 1}),
            debezium("c", None, {"id": 1}),
            debezium("u", None, {"id": 1}),
            debezium("u", {"id": 1}, {"id": 1}),
            debezium("u", {"id": 2}, {"id": 1}),
            debezium("d", {"id": 1, "name": None}, None),
            b"",
            b"null",
            {"schema": None, "payload": None},
            {"databaseName": "shop", "ddl": "CREATE TABLE orders ()", "source": {}},
        )
    ]
    there, gone = {"id": 1, **BLANK}, {"id": 2, **BLANK}
    changed = [(there, False, [TIME_MS, 7, 1])]
    assert found == [
        [(there, False, [BEFORE_ALL, 7, 1])], changed, changed, changed,
        [(gone, True, [TIME_MS, 7, 0]), *changed], [(there, True, [TIME_MS, 7, 0])], [], [], [], [],
    ]  # fmt: skip
